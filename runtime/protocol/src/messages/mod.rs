//! Kafka's messages, one file an API: its request, its response and their parts.
//!
//! Invariants: names are those of Kafka's schemas; a file is a table and nothing else.
//! Never: behaviour.

macro_rules! apis {
    ($($module:ident: $request:ident, $response:ident;)*) => {$(
        pub mod $module;
        pub use $module::{$request, $response};
    )*};
}

apis! {
    api_versions: ApiVersionsRequest, ApiVersionsResponse;
    create_topics: CreateTopicsRequest, CreateTopicsResponse;
    delete_topics: DeleteTopicsRequest, DeleteTopicsResponse;
    fetch: FetchRequest, FetchResponse;
    find_coordinator: FindCoordinatorRequest, FindCoordinatorResponse;
    init_producer_id: InitProducerIdRequest, InitProducerIdResponse;
    list_offsets: ListOffsetsRequest, ListOffsetsResponse;
    metadata: MetadataRequest, MetadataResponse;
    produce: ProduceRequest, ProduceResponse;
}
