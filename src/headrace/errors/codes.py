"""The table of error codes: a page for each kind of error that a user can meet.

`HR-` is followed by four digits: two for the area (`AREAS`), two that count within it. A code names one problem for ever.
When nothing raises it any more, set `retired=True` and keep the entry, so that the code is never given to another problem.
`headrace explain HR-1203` prints a page; `headrace explain --all` writes `docs/errors.md`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["AREAS", "CODES", "ErrorCode", "as_markdown"]

AREAS: Final = {
    "10": "Configuration",
    "11": "Spark and packages",
    "12": "Programs",
    "13": "Types, records and keys",
    "14": "Time, windows and joins",
    "20": "State in functions",
    "21": "Restoring state",
    "22": "Working files",
    "30": "Checkpoints and savepoints",
    "31": "Storage",
    "41": "Files",
    "42": "Kafka",
    "43": "Spark data sources",
    "44": "Delta tables",
    "45": "Formats",
    "46": "Sinks",
    "50": "Functions of the program",
    "60": "Running jobs",
    "70": "REST and the command line",
    "80": "PyFlink programs",
    "85": "Test harness",
    "90": "Defects of Headrace",
}


@dataclass(frozen=True, slots=True)
class ErrorCode:
    """One page: what happened, typical causes, and what to do."""

    code: str
    title: str
    cause: str
    remedy: str
    retired: bool = False

    @property
    def area(self) -> str:
        """The name of the code's area."""
        return AREAS[self.code[3:5]]


_PAGES: Final = (
    # --- configuration ---
    ErrorCode(
        "HR-1001",
        "An option has a wrong value",
        "The value of an option has the wrong form, for example a duration without a unit, or is out of its range.",
        "Correct the value that the message names. `headrace options` lists every option with its type and default.",
    ),
    ErrorCode(
        "HR-1002",
        "An option is unknown or not supported",
        "The key is misspelt, belongs to a part of Flink that does not exist here, or its value asks for such a part.",
        "Use the key that the message suggests, or remove the option. `headrace options` lists the options that exist.",
    ),
    ErrorCode(
        "HR-1003",
        "An assignment on the command line has no value",
        "The text after -D has no equals sign.",
        "Write -D key=value, for example -D parallelism.default=4, and quote values with spaces.",
    ),
    ErrorCode(
        "HR-1004",
        "A secret was given on the command line",
        "Every user of a machine can read the arguments of the commands that run on it, so a token given there is no secret.",
        "Write the token to a file that only you can read and set headrace.rest.token-file, or set HEADRACE_REST_TOKEN.",
    ),
    ErrorCode(
        "HR-1005",
        "A configuration file cannot be used",
        "The file does not exist, cannot be read, is not YAML, or holds something else than keys and values.",
        "Correct the file at the line that the message names. One option per line is enough: `parallelism.default: 4`.",
    ),
    ErrorCode(
        "HR-1006",
        "Options do not fit together",
        "Two options exclude each other, or one needs another that is not set.",
        "Set or change the option that the message names; both keys are in it.",
    ),
    ErrorCode(
        "HR-1007",
        "A sink needs checkpoints",
        "The sink makes its records visible when a checkpoint is complete, and the job takes no checkpoints, or keeps them where "
        "Spark cannot read.",
        "Call env.enable_checkpointing(ms), set execution.checkpointing.dir to a directory that driver and workers share, and "
        "run the job on Spark.",
    ),
    ErrorCode(
        "HR-1008",
        "The checkpoint directory is missing or cannot be used",
        "Checkpoints go to a file system and no directory is set, or the path has no form that Headrace knows.",
        "Set execution.checkpointing.dir to a path or URL that driver and workers can write, such as file:///data/checkpoints or "
        "s3://bucket/checkpoints.",
    ),
    ErrorCode(
        "HR-1009",
        "A batch job has a source that never ends",
        "With execution.runtime-mode=BATCH results leave when the input has ended, and one source has no end.",
        "Use STREAMING, or give the source an end, for example a stop offset.",
    ),
    # --- Spark and packages ---
    ErrorCode(
        "HR-1101",
        "This version of Spark cannot run Headrace",
        "Headrace uses the pipelined shuffle of Spark, which other versions do not have or have in another form.",
        "Install the version of pyspark that the message names, in the driver and on the cluster.",
    ),
    ErrorCode(
        "HR-1102",
        "A Spark Connect session cannot run jobs",
        "Headrace builds stages inside the driver's JVM, and Spark Connect gives no access to it.",
        "Use a classic session: unset SPARK_REMOTE, or make the session without .remote(...).",
    ),
    ErrorCode(
        "HR-1103",
        "The Spark session lacks settings",
        "Some settings of Spark must be there when the application starts, and the session was made without them.",
        "Add what `headrace.spark_conf()` gives to the builder before getOrCreate(), or let Headrace make the session.",
    ),
    ErrorCode(
        "HR-1104",
        "Spark did not start",
        "The master cannot be reached, Java is missing or has the wrong version, or a setting of Spark is wrong.",
        "Run `headrace doctor`: it checks Java, Spark and the master, and says what is missing.",
    ),
    ErrorCode(
        "HR-1105",
        "There are not enough task slots",
        "All subtasks of a job run at the same time, and the Spark session has fewer task slots (cores) than the job has subtasks.",
        "Give the session more cores, lower the parallelism, or end other jobs of the session. `env.explain()` shows the need.",
    ),
    ErrorCode(
        "HR-1106",
        "Python files or packages cannot be sent to the workers",
        "A path does not exist or has a form that Python cannot import, or pip could not install the requirements.",
        "Correct the path or the requirements file, or install the packages on the workers yourself.",
    ),
    ErrorCode(
        "HR-1107",
        "The program's modules are too large to send",
        "The modules beside the program are sent with each job, and together they are larger than the limit.",
        "Install them on the workers, or move data and unrelated files out of the program's directory.",
    ),
    ErrorCode(
        "HR-1108",
        "An optional package is missing",
        "The connector or format needs a Python package that is not part of the basic installation.",
        "Run the command in the message on the driver and on the workers: it installs the extra that the connector needs.",
    ),
    # --- programs ---
    ErrorCode(
        "HR-1201",
        "A number is out of its range",
        "A call was given a number that it cannot use, such as a parallelism of 0 or a negative rate.",
        "Give a number in the range that the message names.",
    ),
    ErrorCode(
        "HR-1202",
        "An argument is of the wrong kind",
        "A call was given an object of a class that it does not take, for example a SinkFunction in place of a Sink.",
        "Give what the message asks for; often a neighbouring call takes the object that you have.",
    ),
    ErrorCode(
        "HR-1203",
        "The call needs a typed stream",
        "The call works on columns, and the type of the stream is not declared, or has no named fields.",
        "Give the operator before it an output_type, for example output_type='word string, n bigint'.",
    ),
    ErrorCode(
        "HR-1204",
        "An object lacks the method that is called",
        "A call takes a function or an object with certain methods, and what it was given has none of them.",
        "Give a function, or a subclass of the class that the message names, such as MapFunction; pass an object, not a class.",
    ),
    ErrorCode(
        "HR-1205",
        "The call must directly follow an operator",
        "Names, uids and settings belong to one operator, and the stream is a union or a new partitioning of others.",
        "Make the call right behind the operator that it is meant for.",
    ),
    ErrorCode(
        "HR-1206",
        "The stream has no such column",
        "A field name is misspelt, or the stream has no type and so no names.",
        "Use one of the names in the message, a position or a function, or declare an output_type.",
    ),
    ErrorCode(
        "HR-1207",
        "A union has streams of different types",
        "Records of a union go to the same operator, so all streams need one type.",
        "Give the streams the same output_type, with a map() where the records differ.",
    ),
    ErrorCode(
        "HR-1208",
        "Streams belong to different environments",
        "An operator can only read streams of its own program, and a program has one environment.",
        "Build both streams with the same StreamExecutionEnvironment.",
    ),
    ErrorCode(
        "HR-1209",
        "A source has no such side output",
        "A source only has the side output of the tag that it was given for corrupt records.",
        "Give the source on_corrupt=tag, or read the side output of the process function that yields the tag.",
    ),
    ErrorCode(
        "HR-1210",
        "A keyed stream cannot be partitioned again",
        "Records of a keyed stream go to the subtask that has the state of their key; another partitioning would break that.",
        "Call rebalance(), broadcast() and the like on the stream before key_by(...).",
    ),
    ErrorCode(
        "HR-1211",
        "Keys of two connected streams would not meet",
        "One key is an int column and the other is not: negative numbers of the two have different hashes.",
        "Make the int column a bigint column, or use a function as key on both sides.",
    ),
    ErrorCode(
        "HR-1212",
        "A join is not complete",
        "A part of the join that says what belongs together was left out.",
        "Call where(key), equal_to(key) and window(assigner), or between(lower, upper), before the function is given.",
    ),
    ErrorCode(
        "HR-1214",
        "The program is empty",
        "The environment had no operator when execute() was called, or all operators belong to a job that was started before.",
        "Add a source and at least one operator before execute().",
    ),
    ErrorCode(
        "HR-1215",
        "The parallelism of an operator is fixed",
        "The operator runs in one subtask, because it needs all records or its source has one reader.",
        "Remove set_parallelism() from it, or use an operator that can run in several subtasks.",
    ),
    ErrorCode(
        "HR-1216",
        "forward() connects operators of different parallelism",
        "With forward() each subtask sends to the subtask with the same number, so both sides need as many.",
        "Give both operators the same parallelism, or use rebalance() or rescale().",
    ),
    ErrorCode(
        "HR-1217",
        "The max parallelism cannot be used",
        "It is lower than the parallelism, above the limit, or chained operators were given different ones.",
        "Set one max parallelism that is at least the parallelism, or start_new_chain() between the operators.",
    ),
    ErrorCode(
        "HR-1218",
        "A uid is used twice",
        "State is found by the uid of its operator, and two operators of the program have the same.",
        "Give each operator a uid of its own.",
    ),
    ErrorCode(
        "HR-1219",
        "An operator has no uid",
        "The option pipeline.auto-generate-uids is false, so that no state is lost when the program changes, and an operator has no uid.",
        "Call .uid('...') on the operator that the message names.",
    ),
    ErrorCode(
        "HR-1220",
        "A uid or operator id has a wrong form",
        "A uid is empty, or set_uid_hash() was given something else than 32 hex digits.",
        "Give a uid with at least one character, or the id as `headrace inspect` shows it.",
    ),
    ErrorCode(
        "HR-1221",
        "A function cannot be sent to the workers",
        "The function refers to something that cannot be pickled: a lock, a connection, an open file, a SparkSession.",
        "Make such objects in open(), which runs on the worker, and keep plain values in the function.",
    ),
    ErrorCode(
        "HR-1222",
        "Only sources can align watermarks",
        "Watermark alignment pauses a source that is ahead, and an operator in the middle of the stream cannot pause.",
        "Give the strategy with the alignment to from_source(...).",
    ),
    ErrorCode(
        "HR-1223",
        "An async retry strategy is not complete",
        "Calls are made again without a timeout, or the strategy has no predicate that says when.",
        "Give map_async() a timeout for all tries together, and a strategy whose get_retry_predicate() returns a predicate.",
    ),
    ErrorCode(
        "HR-1224",
        "project() needs tuples",
        "The call picks fields of tuples by position, and the stream has another type, or no position was given.",
        "Declare a tuple type for the stream and give positions, or use map().",
    ),
    ErrorCode(
        "HR-1225",
        "An argument is none of the allowed values",
        "The call takes one of a few words, and was given another.",
        "Use one of the words in the message.",
    ),
    ErrorCode(
        "HR-1226",
        "A name cannot be used",
        "A name is empty, or has characters that cannot be stored or used in file names.",
        "Choose a name of letters, digits, spaces and single dashes.",
    ),
    ErrorCode(
        "HR-1227",
        "A declared type differs from that of the source",
        "The source or format has a type of its own, and type_info names another.",
        "Leave type_info out, or convert the records with a map() behind the source.",
    ),
    # --- types, records and keys ---
    ErrorCode(
        "HR-1301",
        "A type cannot be understood",
        "The declaration is not valid DDL, names a type that does not exist here, or has field names twice.",
        "Write the type as Spark DDL, for example 'word string, n bigint', or use pyarrow types or headrace.Types.",
    ),
    ErrorCode(
        "HR-1302",
        "A record does not fit the declared type",
        "A function returned a record with other fields or values than its output_type says.",
        "Change what the function returns, or its output_type. Leave the type out for records of mixed forms.",
    ),
    ErrorCode(
        "HR-1303",
        "A Row was made with wrong fields",
        "Positional and named values were mixed, or their number or names differ from those of the row.",
        "Give all values by position or all by name, one for each field.",
    ),
    ErrorCode(
        "HR-1305",
        "A value cannot be a key",
        "The key is null, not hashable, or of a type whose hash is not the same in every process.",
        "Use text, numbers, bytes, booleans or tuples of these; filter out or fill nulls; make a dataclass frozen.",
    ),
    ErrorCode(
        "HR-1306",
        "A key group belongs to another subtask",
        "A number of a key group or subtask is out of the range of this subtask or of the max parallelism.",
        "Use key_group_of(key), and only keys of the record that is being processed.",
    ),
    # --- time, windows and joins ---
    ErrorCode(
        "HR-1401",
        "A value is not a duration",
        "A length of time was given in a form that is not known.",
        "Give Time.hours(1), a timedelta, or milliseconds as int.",
    ),
    ErrorCode(
        "HR-1402",
        "A length of time or a count cannot be used",
        "A size, slide, gap, bound, lateness or interval is negative, zero, or larger than it may be.",
        "Give a length in the range that the message names.",
    ),
    ErrorCode(
        "HR-1403",
        "A trigger does not work with windows that merge",
        "Session windows merge, and the trigger does not say what becomes of its state and timers then.",
        "Define can_merge() and on_merge() in the trigger, or use another one.",
    ),
    ErrorCode(
        "HR-1404",
        "An evictor does not work with reduce() or aggregate()",
        "An evictor removes single records, and reduce() and aggregate() keep none.",
        "Use apply() or process(), or remove the evictor.",
    ),
    ErrorCode(
        "HR-1405",
        "Windows have no bounds in time",
        "Built-in aggregations give start and end of each window, which windows by count or global windows do not have.",
        "Use aggregate() or reduce(), or windows by time.",
    ),
    ErrorCode(
        "HR-1406",
        "Records have no timestamps",
        "Windows and interval joins by event time need a timestamp for each record, and the stream has none.",
        "Give the source a watermark strategy with a timestamp assigner, or call assign_timestamps_and_watermarks(...).",
    ),
    ErrorCode(
        "HR-1407",
        "A timestamp cannot be used",
        "A timestamp, watermark or timer is null, no integer, or so large that its unit cannot be milliseconds.",
        "Give milliseconds since 1970 as int, and filter out records without time.",
    ),
    ErrorCode(
        "HR-1408",
        "A window's state was used in the wrong place",
        "State of a window would be lost when windows merge, and merging calls are for on_merge() only.",
        "Use global_state() or the state of a trigger, and call merge_partitioned_state() in on_merge().",
    ),
    # --- state in functions ---
    ErrorCode(
        "HR-2001",
        "Keyed state or timers need a keyed stream",
        "The operator's input has no keys, so it can have neither keyed state nor timers.",
        "Call key_by(...) before the operator, or use operator state.",
    ),
    ErrorCode(
        "HR-2002",
        "No key is selected",
        "Keyed state was used while no record and no timer is being processed, for example in open().",
        "Ask for the state in open(), and use its value in process_element() or on_timer().",
    ),
    ErrorCode(
        "HR-2003",
        "A value cannot be put into state",
        "The value is None where state needs one, a single value in place of a list, or not of the declared type.",
        "Give a value of the type of the descriptor; call clear() to remove state.",
    ),
    ErrorCode(
        "HR-2004",
        "A value cannot be stored",
        "State, splits and committables are serialised, and the value holds something that cannot be, such as a client or a lock.",
        "Keep plain data in state, and make clients, locks and files in open().",
    ),
    ErrorCode(
        "HR-2005",
        "A state descriptor is not valid",
        "The descriptor has no name, or is of another kind than the call takes.",
        "Give a descriptor of the class that the message names, with a name that is not empty.",
    ),
    ErrorCode(
        "HR-2006",
        "A time to live cannot be used here",
        "The time is not positive, a setting of the clean-up is out of its range, or state of this kind cannot expire.",
        "Correct the value, or remove the time to live and delete old entries yourself.",
    ),
    ErrorCode(
        "HR-2007",
        "A state name stands for two kinds of state",
        "The name was used for state of another kind before, in this program or in the checkpoint.",
        "Give the new state another name.",
    ),
    ErrorCode(
        "HR-2008",
        "Broadcast state was used in a way that it does not allow",
        "It was changed on the side that only reads it, was not declared for the stream, or a key is None or mutable.",
        "Change it in process_broadcast_element(), and pass every descriptor to broadcast(...).",
    ),
    ErrorCode(
        "HR-2009",
        "State of a batch was used in a wrong way",
        "The number of values differs from that of keys or records, a default is missing, or the call was not in process_batch().",
        "Give one value for each key, and use such state in process_batch() only.",
    ),
    ErrorCode(
        "HR-2010",
        "A key changed while its record was processed",
        "The key has another hash than when the record was sent to this subtask: it is not stable, or was changed.",
        "Use immutable keys, and functions as key that give the same result each time and in each process.",
    ),
    ErrorCode(
        "HR-2011",
        "remove() of an iterator has no entry",
        "It was called before next(), or twice for one entry.",
        "Call remove() once after each next().",
    ),
    ErrorCode(
        "HR-2012",
        "Raw state was written in the wrong order",
        "Bytes were written before a stream or key group was started, or a key group was started twice.",
        "Call start_new_stream() or start_new_key_group() once, then write all of its bytes.",
    ),
    ErrorCode(
        "HR-2013",
        "State of this kind cannot be merged",
        "Merging windows combine their state, which only list, reducing and aggregating state can do.",
        "Use one of these kinds for state of windows that merge.",
    ),
    ErrorCode(
        "HR-2014",
        "A namespace cannot be used",
        "The namespace is None or not hashable.",
        "Give a window, a tuple or a str.",
    ),
    # --- restoring state ---
    ErrorCode(
        "HR-2101",
        "Stored state does not fit its new declaration",
        "The type of values, keys or elements, or whether there is a time to live, was changed in a way that old values cannot follow.",
        "Declare the old type, or use another name for the new state. Columns may be added; keys never change their type.",
    ),
    ErrorCode(
        "HR-2102",
        "A class of stored values is missing",
        "A value was pickled, and its class was moved, renamed or cannot be made from the stored fields any more.",
        "Keep the class importable under its old name and able to take its old fields, or upgrade what wrote the value.",
    ),
    ErrorCode(
        "HR-2103",
        "A checkpoint has state of an operator that the program lacks",
        "An operator was removed or got another uid, so nothing takes its state.",
        "Give the operator its uid back, or allow the loss with execution.state-recovery.ignore-unclaimed-state.",
    ),
    ErrorCode(
        "HR-2104",
        "An operator cannot take the state under its uid",
        "The uid was given to an operator of another kind, for example to a sink that writes elsewhere.",
        "Give the uid back to the operator that had it, and a new one to the other.",
    ),
    ErrorCode(
        "HR-2105",
        "The max parallelism differs from that of the checkpoint",
        "Keyed state is divided into a fixed number of key groups, the max parallelism, and it was changed.",
        "Set the max parallelism that the message names, or rewrite the state with the savepoint writer.",
    ),
    ErrorCode(
        "HR-2106",
        "Records in flight cannot be restored into this program",
        "An unaligned checkpoint holds records between operators, and the shape or the parallelism of the program was changed there.",
        "Restore with the same program and parallelism and take a savepoint, then change the program.",
    ),
    ErrorCode(
        "HR-2107",
        "State of another state backend cannot be read",
        "A native snapshot can only be read by the state backend that wrote it.",
        "Run with the backend that the message names, or take a canonical savepoint with it and start from that.",
    ),
    ErrorCode(
        "HR-2108",
        "Subtasks have stored a state in different forms",
        "The state has several types in the checkpoint, none of which holds the others, and no function has opened it since.",
        "Open the state in the function of every subtask, then take the savepoint again.",
    ),
    # --- working files ---
    ErrorCode(
        "HR-2201",
        "Working files of a state backend cannot be used",
        "The local disk of a worker is full or cannot be written, or another backend uses the directory.",
        "Free some space, or set io.tmp.dirs to another directory; the task begins anew from the last checkpoint.",
    ),
    ErrorCode(
        "HR-2202",
        "A value is too large for a canonical savepoint",
        "Canonical savepoints are Parquet tables, whose values have a limit.",
        "Take a native savepoint, or split the value, for example into map state.",
    ),
    ErrorCode(
        "HR-2203",
        "Rows that wait cannot be written to disk",
        "Rows of a blocked channel are kept on the worker's disk, which is full or cannot be written.",
        "Free some space, or set io.tmp.dirs to another directory.",
    ),
    # --- checkpoints and savepoints ---
    ErrorCode(
        "HR-3001",
        "There is no job to resume",
        "No job of that name is in the checkpoint directory, or the job has ended and kept no checkpoint.",
        "Check pipeline.name and execution.checkpointing.dir, or start the job without --resume.",
    ),
    ErrorCode(
        "HR-3002",
        "Another driver has taken over the job",
        "A second driver resumed the job, or its log was deleted, so this driver stops without committing anything.",
        "Let the other driver run, or stop it and resume the job again. Two drivers of one job never write at once.",
    ),
    ErrorCode(
        "HR-3003",
        "The driver that is to be replaced still runs",
        "It wrote to the job log while this driver tried to take the job over.",
        "Stop or cancel that driver first, then resume the job.",
    ),
    ErrorCode(
        "HR-3004",
        "A savepoint has no directory",
        "No target was given and execution.checkpointing.savepoint-dir is not set, or no new directory can be made there.",
        "Give a target directory that driver and workers can write.",
    ),
    ErrorCode(
        "HR-3005",
        "There is no checkpoint or savepoint at the path",
        "The path is wrong, or the checkpoint was deleted because newer ones replaced it.",
        "Give the directory that holds the metadata, for example .../chk-7, or a file that points to it.",
    ),
    ErrorCode(
        "HR-3006",
        "A snapshot is not a savepoint of its own",
        "Only savepoints that hold all of their files may be moved or deleted by hand; checkpoints belong to their job.",
        "Use a savepoint, or `headrace gc` for what a dead job has left.",
    ),
    ErrorCode(
        "HR-3007",
        "A savepoint is not canonical",
        "Only canonical savepoints can be changed by the savepoint writer.",
        "Take one with --format CANONICAL.",
    ),
    ErrorCode(
        "HR-3008",
        "A savepoint cannot be read or written as asked",
        "An operator, state or option of the reader or writer does not exist, or does not fit the state.",
        "Compare with `headrace inspect PATH`, which lists operators and states.",
    ),
    ErrorCode(
        "HR-3009",
        "A job cannot do that now",
        "The job has not started yet, has ended, takes no checkpoints, or is busy with a request that excludes this one.",
        "Wait until the job runs or the other request has ended, then ask again.",
    ),
    ErrorCode(
        "HR-3010",
        "A checkpoint is not kept any more",
        "Newer checkpoints have replaced it.",
        "Use one of the checkpoints in the message, or raise execution.checkpointing.num-retained.",
    ),
    ErrorCode(
        "HR-3011",
        "State is too large for the storage 'jobmanager'",
        "With this storage checkpoints are kept in the driver's memory, with a limit for each state.",
        "Set execution.checkpointing.storage to filesystem and execution.checkpointing.dir.",
    ),
    # --- storage ---
    ErrorCode(
        "HR-3101",
        "A file is missing",
        "A file of a checkpoint, savepoint or job log does not exist any more, or the path is wrong.",
        "Check the path, or use another checkpoint or savepoint. Delete files of jobs with `headrace gc` only.",
    ),
    ErrorCode(
        "HR-3102",
        "Stored data is damaged",
        "The bytes of a file do not match their checksum: the file was cut, changed or replaced.",
        "Restore from an older checkpoint or savepoint, and look for faults of the disk or storage.",
    ),
    ErrorCode(
        "HR-3103",
        "Storage cannot be read or written",
        "The storage cannot be reached, is full, or refuses the credentials.",
        "Check the path, the credentials and the free space. docs/storage.md lists the options of each storage.",
    ),
    ErrorCode(
        "HR-3104",
        "The outcome of a write is not known",
        "The storage did not answer, so the file may exist or may appear later.",
        "The job settles this by itself; if it happens often, look at the connection to the storage.",
    ),
    ErrorCode(
        "HR-3105",
        "A file was written by another version",
        "The file has a format that this version does not read, or was not written by Headrace.",
        "Upgrade Headrace, or use a checkpoint that this version has written.",
    ),
    ErrorCode(
        "HR-3106",
        "The storage cannot create a file only if it is absent",
        "Exactly one driver may complete a checkpoint, which needs a create that fails if the file exists.",
        "Use a storage that can do it: a local or network disk with hard links, S3, GCS, Azure or HDFS.",
    ),
    ErrorCode(
        "HR-3107",
        "A path belongs to another job or user",
        "A file or directory exists where this job wants to write, and it was made by others.",
        "Give each job a directory of its own, or remove what is left over.",
    ),
    # --- files ---
    ErrorCode(
        "HR-4101",
        "A file source was given wrong arguments",
        "Paths are missing, or a size or interval is not positive.",
        "Give at least one path, and positive numbers.",
    ),
    ErrorCode(
        "HR-4102",
        "A file source finds no files",
        "The path does not exist, or the type has to be read from a file and there is none.",
        "Check the path on driver and workers, or declare the type.",
    ),
    ErrorCode(
        "HR-4103",
        "Files cannot be read",
        "A directory cannot be listed, or a file cannot be opened or decoded.",
        "Check permissions, credentials and the format of the file that the message names.",
    ),
    ErrorCode(
        "HR-4104",
        "A file has changed while it was read",
        "A source expects that a file is complete when it appears and never changes, so that it can be read again after a failure.",
        "Write files under another name and rename them when they are complete; give new data a new name.",
    ),
    ErrorCode(
        "HR-4105",
        "A file sink was given wrong arguments",
        "A limit is not positive, a prefix would hide files, or two ways to divide files were given.",
        "Correct the argument that the message names.",
    ),
    ErrorCode(
        "HR-4106",
        "A file sink cannot write",
        "The disk is full, permission is denied, or an upload was aborted from outside.",
        "Check free space and permissions of the target; the job continues from its last checkpoint.",
    ),
    ErrorCode(
        "HR-4107",
        "A file system is not suitable",
        "The paths are on several file systems, or files cannot be made visible in one step there.",
        "Use one source for each file system and union() them; write to a local or mounted directory, or s3://.",
    ),
    # --- Kafka ---
    ErrorCode(
        "HR-4201",
        "A Kafka connector was given wrong arguments",
        "Topics, brokers, offsets, options or the transactional id prefix are missing, contradictory or of a wrong form.",
        "Correct the argument that the message names.",
    ),
    ErrorCode(
        "HR-4202",
        "The Kafka client refuses the options",
        "An option is not one of librdkafka, or has a wrong value.",
        "Correct options=...; names are those of librdkafka, not of the Java client.",
    ),
    ErrorCode(
        "HR-4203",
        "Kafka brokers refuse the login",
        "The credentials are wrong, the security protocol differs, or the login lacks a permission.",
        "Check sasl.* and security.protocol in options=..., and the permissions that the message lists.",
    ),
    ErrorCode(
        "HR-4204",
        "A Kafka topic or partition does not exist",
        "The name is wrong, the topic was deleted, or the brokers belong to another cluster.",
        "Create the topic, or correct topics=..., partitions=... or brokers=....",
    ),
    ErrorCode(
        "HR-4205",
        "A Kafka offset is missing",
        "The records at the offset were deleted, or no offset is stored for a partition.",
        "Set start_fallback, name every partition, or start from another offset.",
    ),
    ErrorCode(
        "HR-4206",
        "Kafka brokers do not answer",
        "The brokers are down, cannot be reached, or a partition has no leader.",
        "Check brokers=..., the network and the state of the cluster.",
    ),
    ErrorCode(
        "HR-4207",
        "A record cannot be written to Kafka",
        "The record is larger than the brokers or the client allow, or a function gave no bytes or no topic.",
        "Raise max.message.bytes of the topic and message.max.bytes of the sink, or correct the function.",
    ),
    ErrorCode(
        "HR-4208",
        "Records were not written to Kafka",
        "The brokers did not confirm the records in time, or refused them.",
        "Check that the brokers run; the job continues from its last checkpoint.",
    ),
    ErrorCode(
        "HR-4209",
        "A Kafka transaction cannot be committed",
        "The transaction has timed out, was fenced by another producer, or its marker is lost.",
        "Give each job its own transactional_id_prefix, and decide with on_lost_marker whether to write the records again.",
    ),
    ErrorCode(
        "HR-4210",
        "Kafka brokers refuse the transaction timeout",
        "The sink's transaction_timeout_ms is above transaction.max.timeout.ms of the brokers.",
        "Lower it, or raise the limit of the brokers.",
    ),
    # --- Spark data sources ---
    ErrorCode(
        "HR-4301",
        "A Python data source cannot be used",
        "The class is no DataSource, has no streaming reader, or its schema cannot be used.",
        "Extend pyspark.sql.datasource.DataSource, define streamReader() or simpleStreamReader(), and give a schema.",
    ),
    ErrorCode(
        "HR-4302",
        "A Python data source broke its contract",
        "One of its methods failed, or gave an offset, partition or row of a form that is not allowed.",
        "Correct the method that the message names.",
    ),
    ErrorCode(
        "HR-4303",
        "from_dataframe() was given a stream",
        "It reads a DataFrame once, and a streaming DataFrame has no end.",
        "Give a bounded DataFrame, or read with from_source(PythonDataSource(...)).",
    ),
    # --- Delta tables ---
    ErrorCode(
        "HR-4401",
        "A Delta table does not fit the stream",
        "The table exists with other fields or another partitioning.",
        "Give the stream the fields of the table, or write to another table.",
    ),
    # --- formats ---
    ErrorCode(
        "HR-4501",
        "A format is unknown or cannot do that",
        "The name of the format is wrong, or the format can only be read or only be written.",
        "Use one of the formats in the message.",
    ),
    ErrorCode(
        "HR-4502",
        "A corrupt record was read",
        "A line or message cannot be decoded with the format and type of the source.",
        "Correct the data, or set on_corrupt to 'skip' or to an OutputTag to go on without it.",
    ),
    ErrorCode(
        "HR-4503",
        "A record cannot be written in the format",
        "The format has no form for the record, for example a line break in a CSV value.",
        "Convert the record in a map() before the sink, or use another format.",
    ),
    ErrorCode(
        "HR-4504",
        "An Avro schema cannot be used",
        "The schema is not valid, or has parts that have no column, such as a union of several types.",
        "Correct the schema at the place that the message names.",
    ),
    ErrorCode(
        "HR-4505",
        "Data does not fit an Avro schema",
        "The data was written with a schema that cannot be read with this one, or a record has other fields.",
        "Give the schema that the data was written with, or convert the records.",
    ),
    # --- sinks ---
    ErrorCode(
        "HR-4601",
        "A sink could not commit",
        "The system that the sink writes to refused the commit in every try.",
        "Check that system; allow more tries with sink.committer.retries. Nothing is lost: the job commits after a restart.",
    ),
    # --- functions of the program ---
    ErrorCode(
        "HR-5001",
        "A function of the program failed",
        "The program's own code raised an exception; the message begins with the line, and names operator, key and record.",
        "Correct the function, or handle such records, for example with a side output.",
    ),
    ErrorCode(
        "HR-5002",
        "A function returned something of a wrong kind",
        "The function returned one value where records are expected, or a value that is out of range.",
        "Yield records or return a list of them, as the message says.",
    ),
    ErrorCode(
        "HR-5003",
        "An aggregation met a null",
        "A running or windowed aggregation has no result for nulls.",
        "Filter nulls out before key_by(...), or fill them.",
    ),
    ErrorCode(
        "HR-5004",
        "A result does not fit its type",
        "A running sum became larger than the type of the column allows.",
        "Declare a wider type, for example bigint or double.",
    ),
    ErrorCode(
        "HR-5005",
        "A record cannot be sent to the next operator",
        "The record holds something that cannot be pickled, or is larger than a row of Spark may be.",
        "Emit plain values, give the operator an output_type, or split large data into several records.",
    ),
    ErrorCode(
        "HR-5007",
        "A source cannot start on the driver",
        "The enumerator of the source, which finds what there is to read, raised an error when it was made.",
        "See the cause in the message; correct the source's arguments or what it reads from.",
    ),
    # --- running jobs ---
    ErrorCode(
        "HR-6001",
        "A job failed",
        "An error ended the job, and its restart strategy allows no more restarts. The message has the first error.",
        "Look at the cause, which has a code of its own where it is known. `headrace story` and the dashboard show all failures.",
    ),
    ErrorCode(
        "HR-6002",
        "A job was cancelled",
        "Someone cancelled the job, in the dashboard, over REST, with the command line, or in Spark.",
        "Nothing is wrong. Start the job with --resume to continue from its last checkpoint.",
    ),
    ErrorCode(
        "HR-6003",
        "A worker or its connection was lost",
        "An executor died, for example for lack of memory, or the connection between driver and worker broke.",
        "Look at the logs of the executor; give it more memory, or lower the state of each task. The job restarts by itself.",
    ),
    ErrorCode(
        "HR-6004",
        "The driver cannot listen for its workers",
        "The address or port of the control plane is in use, or is not one of this machine.",
        "Set headrace.control.port and headrace.control.host to an address that workers can reach.",
    ),
    ErrorCode(
        "HR-6005",
        "The driver did not answer a worker",
        "The worker cannot reach the address that the driver gave it, or the driver is overloaded.",
        "Check firewalls between the machines, and headrace.control.host.",
    ),
    ErrorCode(
        "HR-6006",
        "The Spark session was stopped",
        "Someone called spark.stop() while the job ran, or the Spark application ended.",
        "Stop jobs before the session; start the job with --resume to continue.",
    ),
    ErrorCode(
        "HR-6007",
        "A detached program started no job",
        "The program ended, or took too long, before it had started a job.",
        "Read the log that the message names.",
    ),
    ErrorCode(
        "HR-6008",
        "A local run is stuck",
        "No subtask has work and none waits for a time, for example because a function waits for something outside.",
        "Do not wait inside functions of the local runtime; report it as a defect if no function waits.",
    ),
    # --- REST and the command line ---
    ErrorCode(
        "HR-7001",
        "The driver cannot be reached",
        "No driver of Headrace answers at the address: it has ended, runs elsewhere, or a firewall is between.",
        "Check the URL. `headrace list` shows the jobs of the drivers of this machine.",
    ),
    ErrorCode(
        "HR-7002",
        "The driver does not answer",
        "The connection is open, and the driver gives no answer: it is overloaded or stands still.",
        "Try again later, and look at the log of the driver.",
    ),
    ErrorCode(
        "HR-7003",
        "The driver refused a request",
        "The request was not valid, not allowed, or not possible in the state of the job; the message has the driver's words.",
        "Correct the request as the message says.",
    ),
    ErrorCode(
        "HR-7004",
        "A job is not known",
        "The driver has no job of that id.",
        "GET /jobs lists the jobs of a driver; an id has 32 hex digits.",
    ),
    ErrorCode(
        "HR-7005",
        "An operation is not known",
        "It was never started, or its result is older than rest.async.store-duration.",
        "Start it again, or ask for results sooner.",
    ),
    ErrorCode(
        "HR-7006",
        "Too many operations are under way",
        "The driver limits how many savepoints and other long requests run at once.",
        "Wait until some of them have ended.",
    ),
    ErrorCode(
        "HR-7007",
        "A page of state cannot be continued",
        "The page before is too old, or was continued already.",
        "Start again from the first page.",
    ),
    ErrorCode(
        "HR-7008",
        "The address of a driver is missing or wrong",
        "Several drivers run on this machine, none runs, or the text is no URL.",
        "Give --url with an address such as http://127.0.0.1:8081.",
    ),
    ErrorCode(
        "HR-7009",
        "A token is missing or has a wrong form",
        "The driver's token cannot be found by this user, or has characters that a header cannot carry.",
        "Set HEADRACE_REST_TOKEN to the token of the driver.",
    ),
    ErrorCode(
        "HR-7010",
        "The name of a job is not clear",
        "The text names no job, or several.",
        "Give more of the job's id, or --url of its driver.",
    ),
    ErrorCode(
        "HR-7011",
        "REST cannot start with these options",
        "The address cannot be listened on or is open without a token, or the files for token or TLS are missing or open to others.",
        "Correct the option that the message names.",
    ),
    ErrorCode(
        "HR-7012",
        "A file of the command line cannot be read",
        "The path does not exist, or is not a Python program.",
        "Check the path; it is relative to the current directory.",
    ),
    ErrorCode(
        "HR-7013",
        "Arguments of a command do not fit together",
        "An argument needs another one, or names a job that the directory does not have.",
        "See `headrace COMMAND --help`.",
    ),
    ErrorCode(
        "HR-7014",
        "State of a job cannot be shown",
        "The job has no completed checkpoint, the state is too large for a page, or the key has a wrong form.",
        "Take a checkpoint first, write keys as JSON, and use `headrace state` or Spark for large state.",
    ),
    # --- PyFlink programs ---
    ErrorCode(
        "HR-8001",
        "A part of Flink that is written in Java is not there",
        "Headrace runs without Flink's JVM code, so classes and properties of Java cannot be used.",
        "Use the Python class or option that the message names.",
    ),
    ErrorCode(
        "HR-8002",
        "A feature of Flink is not supported",
        "The call exists in PyFlink, and Headrace has nothing that does the same.",
        "Use what the message suggests. `headrace migrate` checks a whole program at once.",
    ),
    ErrorCode(
        "HR-8003",
        "A builder of a connector is not complete",
        "A call that the connector needs was left out, or calls contradict each other.",
        "Add or remove the call that the message names.",
    ),
    ErrorCode(
        "HR-8004",
        "A serialisation schema does not fit the records",
        "The schema needs another type, or a record has other fields than the schema.",
        "Put a map(...) with the right output_type before the sink, or correct the schema.",
    ),
    ErrorCode(
        "HR-8005",
        "A setting of Flink has a wrong value",
        "A size, count or path of a slot sharing group, state backend or checkpoint storage cannot be used.",
        "Give a value in the range that the message names.",
    ),
    # --- test harness ---
    ErrorCode(
        "HR-8501",
        "The test harness was used in a wrong way",
        "The harness is not open, time would run backwards, or the key belongs to another subtask.",
        "Use it as `with OneInputHarness(...) as harness:`, and do what the message says.",
    ),
    # --- defects of Headrace ---
    ErrorCode(
        "HR-9001",
        "Headrace met a state that should not exist",
        "An internal rule was broken. Programs cannot cause this: it is a defect of Headrace.",
        "Please report it with the whole traceback. The job continues from its last checkpoint if it can restart.",
    ),
)

CODES: Final = {page.code: page for page in _PAGES}


def as_markdown() -> str:
    """All pages as one document."""
    lines = [
        "# Error codes",
        "",
        "<!-- written by `headrace explain --all`; change src/headrace/errors/codes.py -->",
        "",
        "Every error that a program, its data or its surroundings can cause begins with a code, as in `[HR-1203] ...`.",
        "`headrace explain HR-1203` prints its page. A code never changes its meaning.",
    ]
    for area, name in AREAS.items():
        pages = [page for page in _PAGES if page.code[3:5] == area]
        lines += ["", f"## {name}"]
        for page in pages:
            title = f"{page.title} (retired)" if page.retired else page.title
            lines += ["", f"### {page.code}: {title}", "", page.cause, "", f"**What to do:** {page.remedy}"]
    return "\n".join(lines) + "\n"
