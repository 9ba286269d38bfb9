"""Stored names of the client's values: types, schemas, expressions, operators and connectors.

See `vocab.canonical` for the format and
`docs/decisions/0029-stored-names-are-a-frozen-table.md` for the rules. `blueprints.stored_names`
adds what the compiler makes of these values. Names here are frozen: change the Python side of
`stored=python`, never the stored side.
"""

from __future__ import annotations

from typing import Final

from fennel_core.vocab import dtypes as t
from fennel_core.vocab.canonical import Stored, StoredNames
from fennel_core.vocab.schema import Schema
from fennel_core.wire import connectors as c
from fennel_core.wire import entities as e
from fennel_core.wire import expr as x
from fennel_core.wire import operators as o
from fennel_core.wire.pycode import PyCode, RefKind

_TYPES: Final = (
    Stored("type.int", t.Int),
    Stored("type.float", t.Float),
    Stored("type.str", t.Str),
    Stored("type.bool", t.Bool),
    Stored("type.bytes", t.Bytes),
    Stored("type.timestamp", t.Timestamp),
    Stored("type.date", t.Date),
    Stored("type.null", t.Null),
    Stored("type.decimal", t.Decimal, "scale"),
    Stored("type.embedding", t.Embedding, "size"),
    Stored("type.list", t.List, "of"),
    Stored("type.map", t.Map, "value"),
    Stored("type.optional", t.Optional, "of"),
    Stored("type.between", t.Between, "of min max strict_min strict_max"),
    Stored("type.one_of", t.OneOf, "of options"),
    Stored("type.regex", t.Regex, "pattern"),
    Stored("type.struct", t.Struct, "name fields"),
    Stored("field", t.Field, "name type=dtype"),
    Stored("schema", Schema, "keys values timestamp"),
)

_CODE: Final = (
    Stored(
        "code",
        PyCode,
        "entry_point source_code core_code generated_code imports includes ref_includes",
    ),
    Stored("code.ref", RefKind, "dataset featureset"),
)

_EXPRESSIONS: Final = (
    Stored("expr.ref", x.Ref, "name"),
    Stored("expr.literal", x.Literal, "json type=dtype"),
    Stored(
        "expr.datetime_literal",
        x.DatetimeLiteral,
        "year month day hour minute second microsecond timezone",
    ),
    Stored("expr.var", x.Var, "name"),
    Stored("expr.now", x.Now),
    Stored("expr.unary", x.Unary, "op operand"),
    Stored("expr.unary_op", x.UnaryOp, "neg not"),
    Stored("expr.binary", x.Binary, "op left right"),
    Stored(
        "expr.binary_op",
        x.BinaryOp,
        "add sub mul div mod floor_div eq ne gt gte lt lte and or",
    ),
    Stored("expr.case", x.Case, "branches otherwise"),
    Stored("expr.when_then", x.WhenThen, "when then"),
    Stored("expr.is_null", x.IsNull, "operand"),
    Stored("expr.fill_null", x.FillNull, "operand fill"),
    Stored("expr.list", x.ListFn, "operand op"),
    Stored("list.fold", x.ListFold, "len has_null sum min max all any mean"),
    Stored("list.get", x.ListGet, "index"),
    Stored("list.contains", x.ListContains, "element"),
    Stored("list.filter", x.ListFilter, "var predicate"),
    Stored("list.map", x.ListMap, "var body"),
    Stored("expr.math", x.MathFn, "operand op"),
    Stored(
        "math.unary",
        x.MathUnary,
        "abs ceil floor to_string sqrt sin cos tan asin acos atan is_nan is_infinite",
    ),
    Stored("math.round", x.Round, "precision"),
    Stored("math.pow", x.Pow, "exponent"),
    Stored("math.log", x.Log, "base"),
    Stored("expr.struct_get", x.StructGet, "operand field"),
    Stored("expr.dict", x.DictFn, "operand op"),
    Stored("dict.len", x.DictLen),
    Stored("dict.get", x.DictGet, "key default"),
    Stored("dict.contains", x.DictContains, "key"),
    Stored("expr.make_struct", x.MakeStruct, "struct fields"),
    Stored("expr.zip", x.Zip, "struct fields"),
    Stored("expr.repeat", x.Repeat, "operand count"),
    Stored("expr.string", x.StringFn, "operand op"),
    Stored("string.unary", x.StringUnary, "len to_lower to_upper to_int"),
    Stored("string.contains", x.StringContains, "element"),
    Stored("string.starts_with", x.StartsWith, "prefix"),
    Stored("string.ends_with", x.EndsWith, "suffix"),
    Stored("string.concat", x.Concat, "other"),
    Stored("string.strptime", x.Strptime, "format timezone"),
    Stored("string.json_decode", x.JsonDecode, "type=dtype"),
    Stored("string.split", x.Split, "separator"),
    Stored("string.json_extract", x.JsonExtract, "path"),
    Stored("expr.datetime", x.DateTimeFn, "operand op"),
    Stored("datetime.since", x.Since, "other unit"),
    Stored("datetime.since_epoch", x.SinceEpoch, "unit"),
    Stored("datetime.strftime", x.Strftime, "format timezone"),
    Stored("datetime.part", x.Part, "unit timezone"),
    Stored("expr.from_epoch", x.FromEpoch, "operand unit"),
    Stored(
        "time_unit",
        x.TimeUnit,
        "microsecond millisecond second minute hour day week month year",
    ),
)

_OPERATORS: Final = (
    Stored("window.forever", o.Forever),
    Stored("window.sliding", o.Sliding, "duration_us"),
    Stored("window.tumbling", o.Tumbling, "duration_us lookback_us"),
    Stored("window.hopping", o.Hopping, "duration_us stride_us lookback_us"),
    Stored("window.forever_hopping", o.ForeverHopping, "stride_us lookback_us"),
    Stored("window.session", o.Session, "gap_us"),
    Stored("aggregate.sum", o.Sum, "name window of"),
    Stored("aggregate.average", o.Average, "name window of default"),
    Stored("aggregate.count", o.Count, "name window of unique approx dropnull"),
    Stored("aggregate.last_k", o.LastK, "name window of limit dedup dropnull"),
    Stored("aggregate.first_k", o.FirstK, "name window of limit dedup dropnull"),
    Stored("aggregate.min", o.Min, "name window of default"),
    Stored("aggregate.max", o.Max, "name window of default"),
    Stored("aggregate.stddev", o.Stddev, "name window of default"),
    Stored("aggregate.distinct", o.Distinct, "name window of dropnull"),
    Stored("aggregate.quantile", o.Quantile, "name window of p default approx"),
    Stored("aggregate.exp_decay", o.ExpDecay, "name window of half_life_us"),
    Stored("operator.dataset", o.DatasetRef, "dataset"),
    Stored("operator.aggregate", o.Aggregate, "operand keys specs along emit"),
    Stored("operator.emit", o.Emit, "eager final"),
    Stored("operator.join", o.Join, "left right on how within_low_us within_high_us fields"),
    Stored("operator.join_how", o.JoinHow, "left inner"),
    Stored("operator.transform", o.Transform, "operand schema code=pycode"),
    Stored("operator.union", o.Union_, "operands"),
    Stored("operator.filter", o.Filter, "operand code=pycode"),
    Stored("operator.filter_expr", o.FilterExpr, "operand expr"),
    Stored("operator.rename", o.Rename, "operand columns"),
    Stored("operator.drop", o.Drop, "operand columns"),
    Stored("operator.explode", o.Explode, "operand columns"),
    Stored("operator.dedup", o.Dedup, "operand by window"),
    Stored("operator.first", o.First, "operand by"),
    Stored("operator.latest", o.Latest, "operand by"),
    Stored("operator.assign", o.Assign, "operand column type=dtype code=pycode"),
    Stored("operator.assign_expr", o.AssignExpr, "operand columns"),
    Stored("operator.dropnull", o.Dropnull, "operand columns"),
    Stored("operator.changelog", o.Changelog, "operand kind_column deletes"),
    Stored("operator.window", o.WindowOp, "operand window by field specs emit specs_known"),
)

_CONNECTORS: Final = (
    Stored("secret.plain", c.PlainSecret, "value"),
    Stored("secret.sealed", c.SealedSecret, "fingerprint token"),
    Stored("secret.ref", c.SecretRef, "arn role_arn path"),
    Stored("login", c.Login, "user password"),
    Stored("db.webhook", c.Webhook, "name retention_us"),
    Stored("db.mysql", c.MySQL, "name host port database jdbc_params login"),
    Stored("db.postgres", c.Postgres, "name host port database jdbc_params login"),
    Stored("db.s3", c.S3, "name role_arn login"),
    Stored("db.bigquery", c.BigQuery, "name project_id dataset_id service_account_key"),
    Stored("db.snowflake", c.Snowflake, "name account database schema warehouse role login"),
    Stored(
        "db.kafka",
        c.Kafka,
        "name bootstrap_servers security_protocol sasl_mechanism sasl_jaas_config group_id login",
    ),
    Stored("db.kinesis", c.Kinesis, "name role_arn"),
    Stored("db.redshift", c.Redshift, "name host port database schema s3_access_role_arn login"),
    Stored("db.mongo", c.Mongo, "name host database login"),
    Stored("db.pubsub", c.PubSub, "name project_id service_account_key"),
    Stored("db.http", c.Http, "name host healthz ca_cert"),
    Stored("db.named", c.NamedReference, "name kind"),
    Stored("auth.basic", c.BasicAuth, "login"),
    Stored("auth.token", c.TokenAuth, "token"),
    Stored("schema_registry", c.SchemaRegistry, "url auth"),
    Stored("format.json", c.JsonFormat),
    Stored("format.avro", c.AvroFormat, "registry"),
    Stored("format.protobuf", c.ProtobufFormat, "registry"),
    Stored("table.webhook", c.WebhookEndpoint, "db endpoint"),
    Stored("table.mysql", c.MySQLTable, "db table"),
    Stored("table.postgres", c.PostgresTable, "db table slot_name"),
    Stored("table.postgres_changes", c.PostgresChanges, "db table"),
    Stored("table.mysql_changes", c.MySQLChanges, "db table"),
    Stored(
        "table.s3",
        c.S3Table,
        "db bucket prefix suffix format delimiter headers presorted spread_us",
    ),
    Stored("table.kafka", c.KafkaTopic, "db topic format"),
    Stored("table.snowflake", c.SnowflakeTable, "db table"),
    Stored("table.bigquery", c.BigQueryTable, "db table"),
    Stored("table.kinesis", c.KinesisStream, "db stream_arn init_position format"),
    Stored("table.redshift", c.RedshiftTable, "db table"),
    Stored("table.mongo", c.MongoCollection, "db collection"),
    Stored("table.pubsub", c.PubSubTopic, "db topic format"),
    Stored("table.http", c.HttpPath, "db endpoint limit headers"),
    Stored("kinesis.latest", c.FromLatest),
    Stored("kinesis.trim_horizon", c.FromTrimHorizon),
    Stored("kinesis.timestamp", c.FromTimestamp, "at_us"),
    Stored("cdc", c.Cdc, "append upsert debezium native delete"),
    Stored("preproc.payload", c.FromPayload, "path"),
    Stored("preproc.constant", c.Constant, "value type=dtype"),
    Stored("preproc.expr", c.EvalExpr, "expr schema"),
    Stored("preproc.code", c.EvalCode, "code=pycode schema"),
    Stored("sampling", c.Sampling, "rate columns"),
    Stored(
        "source",
        c.Source,
        "dataset version table cdc disorder_us every_us cursor timestamp_field since_us until_us "
        "bounded idleness_us preproc where sampling",
    ),
    Stored("sink.incremental", c.Incremental),
    Stored("sink.recreate", c.Recreate),
    Stored("sink.snapshot", c.Snapshot, "marker num_retain"),
    Stored(
        "sink",
        c.Sink,
        "dataset version table cdc every_us how create stacked renames since_us until_us",
    ),
)

_FEATURES: Final = (
    Stored("feature", e.FeatureRef, "featureset name"),
    Stored("extractor.code", e.PyFunc, "code=pycode"),
    Stored("extractor.lookup", e.Lookup, "dataset field default_json"),
    Stored("extractor.list_lookup", e.ListLookup, "dataset field default_json"),
    Stored("extractor.alias", e.Alias, "default_json"),
    Stored("extractor.expr", e.ExprExtractor, "expr"),
    Stored("index.side", e.IndexSide, "online offline"),
    Stored("expectation", e.Expectation, "type kwargs"),
)

ROWS: Final = (*_TYPES, *_CODE, *_EXPRESSIONS, *_OPERATORS, *_CONNECTORS, *_FEATURES)
NAMES: Final = StoredNames(ROWS)
