"""One module a foreign suite; the order is the order of the table."""

from suites import (
    clients,
    defaults,
    franz_go_tests,
    kafka_programs,
    kafka_python_tests,
    kafka_streams,
    kafka_tools,
    kafka_tools_groups,
    kafka_tools_transactions,
    mixed_groups,
    our_job,
    our_tests,
    rdkafka_tests,
    refusals,
    replicas,
    rskafka_tests,
    security,
    versions,
)

# These add cases to the suite `kafka-tools`.
assert kafka_tools_groups.SUITE is kafka_tools_transactions.SUITE is kafka_tools.SUITE
SUITES = [
    kafka_tools.SUITE,
    kafka_programs.SUITE,
    kafka_streams.SUITE,
    *clients.SUITES,
    defaults.SUITE,
    franz_go_tests.SUITE,
    rdkafka_tests.SUITE,
    rskafka_tests.SUITE,
    kafka_python_tests.SUITE,
    our_job.SUITE,
    our_tests.SUITE,
    mixed_groups.SUITE,
    security.SUITE,
    replicas.SUITE,
    versions.SUITE,
    refusals.SUITE,
]
