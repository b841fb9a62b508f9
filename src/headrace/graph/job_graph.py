"""The program as a list of nodes, and the job graph made of it: chained vertices, edges, stable operator ids.

`api/stream.py` adds a `Node` to the `Pipeline` for every call; `build_job_graph` turns nodes into vertices. Runs on the
driver, before the job starts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, ClassVar, Literal, Self

from headrace.errors import GraphError, InvalidArgument
from headrace.ids import EdgeId, OperatorId, VertexId
from headrace.records.copying import immutable
from headrace.records.key_groups import check_max_parallelism, default_max_parallelism, murmur3_128
from headrace.records.types import PICKLED, TypeInformation, as_type, check_storable

OperatorKind = Literal[
    "source",
    "map",
    "flat_map",
    "filter",
    "map_batches",
    "process",
    "async",
    "timestamps",
    "window",
    "window_columns",
    "interval_join",
    "co_map",
    "co_flat_map",
    "co_process",
    "sink",
    "sink_to",
    "print",
    "collect",
    "reduce",
    "aggregate",
    "keyed_process",
    "keyed_batches",
    "keyed_co_process",
    "broadcast_process",
]
PartitioningKind = Literal["forward", "rebalance", "rescale", "shuffle", "broadcast", "global", "hash", "custom"]


@immutable
class OutputTag:
    """Names a side output: `yield tag, value` in a process function, `stream.get_side_output(tag)` to read it.

    >>> OutputTag("late", "word string")
    OutputTag('late')
    """

    __slots__ = ("name", "type")

    @property
    def tag_id(self) -> str:
        """PyFlink's name for the name."""
        return self.name

    @property
    def type_info(self) -> TypeInformation:
        """PyFlink's name for the type."""
        return self.type

    def __init__(self, tag_id: str, type_info: object = None) -> None:
        if not tag_id:
            raise InvalidArgument("HR-1226", "an OutputTag needs a name that is not empty")
        self.name = tag_id
        self.type: TypeInformation = as_type(type_info)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OutputTag) and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return f"OutputTag({self.name!r})"


@dataclass(frozen=True, slots=True)
class KeySpec:
    """The computation of a record's key: columns of a typed stream, or a selector."""

    columns: tuple[int, ...] = ()
    selector: Any = None
    single: bool = True  # one column gives the bare value as key, several a tuple
    type: TypeInformation = PICKLED


@dataclass(frozen=True, slots=True)
class Partitioning:
    """The choice of a record's target subtask."""

    kind: PartitioningKind
    key: KeySpec | None = None
    partitioner: Any = None  # custom: (key, number of targets) -> target

    @property
    def pointwise(self) -> bool:
        """Return True if a writer reaches only some of the readers."""
        return self.kind in ("forward", "rescale")

    def targets(self, writer: int, writers: int, readers: int) -> range:
        """The readers a writer has a channel to."""
        if self.kind == "forward":
            return range(writer, writer + 1)
        if self.kind == "rescale":
            if writers >= readers:
                target = writer * readers // writers
                return range(target, target + 1)
            return range(-(-writer * readers // writers), -(-(writer + 1) * readers // writers))
        return range(readers)

    def writers(self, reader: int, writers: int, readers: int) -> list[int]:
        """The writers a reader has a channel from."""
        return [w for w in range(writers) if reader in self.targets(w, writers, readers)]


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorSpec:
    """The base of the specifications of all kinds of operators, which are in `api/specs.py`."""

    kind: ClassVar[OperatorKind]
    function: Any = None
    keys: tuple[KeySpec | None, ...] = ()  # the key of each input, for keyed operators

    @property
    def keyed(self) -> bool:
        """True if an input has a key, so that there is keyed state."""
        return any(key is not None for key in self.keys)

    @classmethod
    def of(cls, operator: ChainedOperator) -> Self:
        """Return the specification of an operator, which must be of this kind."""
        spec = operator.spec
        assert isinstance(spec, cls), f"'{operator.name}' has a {type(spec).__name__}, not a {cls.__name__}"
        return spec


@dataclass(slots=True)
class NodeInput:
    """One input of a node: the output (or side output) of another node, and its partitioning."""

    node: int
    tag: OutputTag | None
    partitioning: Partitioning | None  # None: forward if the parallelism is equal, else rebalance
    input: int


@dataclass(slots=True)
class Node:
    """One operator of the program."""

    id: int
    name: str
    operator: OperatorSpec
    inputs: list[NodeInput]
    type: TypeInformation
    call_site: str
    parallelism: int | None = None
    max_parallelism: int | None = None
    uid: str | None = None
    description: str | None = None
    chaining: Literal["always", "head", "never"] = "always"
    single: bool = False  # its parallelism must be 1
    buffer_timeout: int | None = None
    uid_hash: str | None = None
    slot_sharing_group: str | None = None

    @property
    def where(self) -> str:
        """Name and line, for error messages."""
        return f"'{self.name}' ({self.call_site})"


class Pipeline:
    """The program so far: a list of nodes, each made after its inputs.

    A stream may be used again after a job was started: the next job has the nodes that were added since, and those
    they read from.
    """

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self._started = 0  # the number of nodes when the last job was started

    def add(
        self, name: str, operator: OperatorSpec, inputs: Iterable[NodeInput], type: TypeInformation, call_site: str
    ) -> Node:
        """Append a node."""
        node = Node(len(self.nodes), name, operator, list(inputs), type, call_site)
        self.nodes.append(node)
        return node

    def next_job(self) -> list[Node]:
        """The nodes of the next job, as copies whose open settings can be filled in."""
        wanted: set[int] = set()
        for node in reversed(self.nodes):
            if node.id >= self._started or node.id in wanted:
                wanted |= {node.id, *(node_input.node for node_input in node.inputs)}
        return [replace(node) for node in self.nodes if node.id in wanted]

    def copy(self) -> Pipeline:
        other = Pipeline()
        other.nodes, other._started = list(self.nodes), self._started
        return other

    def job_started(self) -> None:
        """All nodes so far belong to the job that was just started."""
        self._started = len(self.nodes)


@dataclass(slots=True)
class ChainedOutput:
    """The receiver of an operator's records: an operator of the same chain, or an edge."""

    tag: str | None
    operator: int | None = None  # place in the vertex's chain
    input: int = 0
    edge: EdgeId | None = None


@dataclass(slots=True)
class ChainedOperator:
    """An operator inside a vertex."""

    id: OperatorId
    name: str
    spec: OperatorSpec
    type: TypeInformation
    call_site: str
    uid: str | None
    description: str
    outputs: list[ChainedOutput] = field(default_factory=list)

    @property
    def label(self) -> str:
        """The name in paths: the uid where there is one."""
        return self.uid or self.name


@dataclass(slots=True)
class Vertex:
    """Chained operators, which run in one subtask."""

    id: VertexId
    operators: list[ChainedOperator]
    parallelism: int
    max_parallelism: int
    max_parallelism_set: bool
    buffer_timeout: int | None

    @property
    def name(self) -> str:
        return " -> ".join(op.name for op in self.operators)

    @property
    def head(self) -> ChainedOperator:
        """The operator that takes the vertex's input."""
        return self.operators[0]

    @property
    def is_source(self) -> bool:
        return self.head.spec.kind == "source"


@dataclass(slots=True)
class Edge:
    """The records from one vertex to another."""

    id: EdgeId
    source: VertexId
    target: VertexId
    input: int
    partitioning: Partitioning
    type: TypeInformation
    tag: str | None


@dataclass(slots=True)
class JobGraph:
    """Vertices in topological order, and the edges between them."""

    name: str
    vertices: list[Vertex]
    edges: list[Edge]

    def inputs(self, vertex: VertexId) -> list[Edge]:
        """Edges into a vertex."""
        return [edge for edge in self.edges if edge.target == vertex]

    def outputs(self, vertex: VertexId) -> list[Edge]:
        """Edges out of a vertex."""
        return [edge for edge in self.edges if edge.source == vertex]


def build_job_graph(
    pipeline: Pipeline,
    name: str,
    parallelism: int,
    max_parallelism: int | None = None,
    chaining: bool = True,
    auto_uids: bool = True,
) -> JobGraph:
    """Chain operators where possible; a GraphError names the operator and the line that is wrong."""
    nodes = pipeline.next_job()
    if not nodes:
        raise GraphError("HR-1214", "the program is empty: add a source and at least one operator before execute()")
    check_storable(name, "the name of the job")
    for node in nodes:
        _settle_parallelism(node, parallelism)
    ids = _operator_ids(nodes, auto_uids)
    by_id = {node.id: node for node in nodes}
    partitionings = {
        (node.id, i): _settle_partitioning(by_id[node_input.node], node, node_input)
        for node in nodes
        for i, node_input in enumerate(node.inputs)
    }
    head_of = _chain_heads(nodes, by_id, partitionings, chaining)
    chains: dict[int, list[Node]] = defaultdict(list)
    for node in nodes:
        chains[head_of[node.id]].append(node)
    vertices = [_vertex(VertexId(i), chain, ids, max_parallelism) for i, chain in enumerate(chains.values())]
    place = {
        node.id: (VertexId(i), position)
        for i, chain in enumerate(chains.values())
        for position, node in enumerate(chain)
    }
    edges: list[Edge] = []
    inputs = [(consumer, i) for consumer in nodes for i in range(len(consumer.inputs))]
    for producer, (consumer, i) in product(nodes, inputs):
        node_input = consumer.inputs[i]
        if node_input.node != producer.id:
            continue
        (vertex, position), (target, target_position) = place[producer.id], place[consumer.id]
        tag = node_input.tag.name if node_input.tag else None
        output = ChainedOutput(tag, operator=target_position, input=node_input.input)
        if target != vertex:
            type = node_input.tag.type if node_input.tag else producer.type
            edge_id, partitioning = EdgeId(len(edges)), partitionings[consumer.id, i]
            edges.append(Edge(edge_id, vertex, target, node_input.input, partitioning, type, tag))
            output = ChainedOutput(tag, edge=edge_id)
        vertices[vertex].operators[position].outputs.append(output)
    return JobGraph(name, vertices, edges)


def settled_nodes(pipeline: Pipeline, parallelism: int) -> list[tuple[Node, list[Partitioning]]]:
    """The nodes of the next job with their parallelism, and the partitioning of each input."""
    nodes = pipeline.next_job()
    by_id = {node.id: node for node in nodes}
    for node in nodes:
        _settle_parallelism(node, parallelism)
    return [(node, [_settle_partitioning(by_id[i.node], node, i) for i in node.inputs]) for node in nodes]


def _settle_parallelism(node: Node, default: int) -> None:
    if node.single:
        if node.parallelism not in (None, 1):
            raise GraphError(
                "HR-1215", f"{node.where} always runs with parallelism 1, but was given {node.parallelism}"
            )
        node.parallelism = 1
    elif node.parallelism is None:
        node.parallelism = default


def _settle_partitioning(upstream: Node, node: Node, node_input: NodeInput) -> Partitioning:
    same = upstream.parallelism == node.parallelism
    if node_input.partitioning is None:
        return Partitioning("forward" if same else "rebalance")
    if node_input.partitioning.kind == "forward" and not same:
        raise GraphError(
            "HR-1216",
            f"forward() from {upstream.where} with parallelism {upstream.parallelism} to {node.where} with parallelism "
            f"{node.parallelism}: forward needs the same parallelism on both sides; use rebalance() or rescale()",
        )
    return node_input.partitioning


def _chain_heads(
    nodes: list[Node], by_id: dict[int, Node], partitionings: dict[tuple[int, int], Partitioning], chaining: bool
) -> dict[int, int]:
    """For each node the head of its chain."""
    head_of: dict[int, int] = {}
    for node in nodes:
        head_of[node.id] = node.id
        if chaining and len(node.inputs) == 1:
            upstream = by_id[node.inputs[0].node]
            forward = partitionings[node.id, 0].kind == "forward"
            if forward and node.chaining == "always" and upstream.chaining != "never":
                head_of[node.id] = head_of[upstream.id]
    return head_of


def _vertex(number: VertexId, chain: list[Node], ids: dict[int, OperatorId], job_max: int | None) -> Vertex:
    head = chain[0]
    assert head.parallelism is not None
    explicit = {node.max_parallelism for node in chain if node.max_parallelism is not None}
    if len(explicit) > 1:
        names = ", ".join(f"{n.where}: {n.max_parallelism}" for n in chain if n.max_parallelism is not None)
        raise GraphError(
            "HR-1217",
            f"chained operators have different max parallelism ({names}): give them the same, or start_new_chain()",
        )
    chosen = explicit.pop() if explicit else job_max
    if chosen is not None:
        try:
            check_max_parallelism(chosen, head.parallelism, f"operator {head.where}")
        except InvalidArgument as error:
            raise GraphError(str(error)) from None
    operators = [
        ChainedOperator(ids[n.id], n.name, n.operator, n.type, n.call_site, n.uid, n.description or n.name)
        for n in chain
    ]
    timeouts = [n.buffer_timeout for n in chain if n.buffer_timeout is not None]
    key_groups = default_max_parallelism(head.parallelism) if chosen is None else chosen
    timeout = timeouts[-1] if timeouts else None
    return Vertex(number, operators, head.parallelism, key_groups, chosen is not None, timeout)


def operator_id_of(uid: str) -> OperatorId:
    """The id of the operator with a uid (SPEC R8.5).

    >>> operator_id_of("a")[:8]
    '897859f6'
    """
    return OperatorId(murmur3_128(uid.encode()).hex())


def _operator_ids(nodes: list[Node], auto_uids: bool) -> dict[int, OperatorId]:
    """SPEC R8.5: the uid's hash, or a hash of the structure that does not depend on names or parallelism."""
    ids: dict[int, OperatorId] = {}
    owners: dict[str, Node] = {}
    for position, node in enumerate(nodes):
        if node.uid_hash is not None:
            ids[node.id] = OperatorId(node.uid_hash)
        elif node.uid is not None:
            if node.uid in owners:
                raise GraphError(
                    "HR-1218",
                    f"uid '{node.uid}' is used twice: by {owners[node.uid].where} and by {node.where}; every uid must be unique",
                )
            owners[node.uid] = node
            ids[node.id] = operator_id_of(node.uid)
        elif not auto_uids:
            raise GraphError(
                "HR-1219",
                f"{node.where} has no uid and pipeline.auto-generate-uids is false: call .uid('...') on it, "
                "so that its state is found again after the program changes",
            )
        else:
            inputs = ",".join(f"{ids[i.node]}:{i.input}:{i.tag.name if i.tag else ''}" for i in node.inputs)
            ids[node.id] = operator_id_of(f"{position}|{node.operator.kind}|{inputs}")
    return ids
