"""Sources and sinks for systems outside: files, Kafka, Delta, Spark's data sources.

Each module stands alone and needs its library only when it is used: `from headrace.connectors.kafka import KafkaSource`.
"""
