"""One module a foreign suite; the order is the order of the table."""

from suites import kafka_programs, kafka_streams, kafka_tools

SUITES = [kafka_tools.SUITE, kafka_programs.SUITE, kafka_streams.SUITE]
