//! The bundled workload of the examples.
