"""Do token-wise work a tile of tokens at a time, so that memory holds no wide activation of all tokens.

An MLP widens [B, N, E] to [B, N, 4E]: at 331 776 tokens and E = 1024 that is 5.4 GB, twice. Each stage
(`token_stages`) becomes a Loop over tiles:

1. a stage that ends in a token tensor: each round slices a tile from the whole inputs, computes the stage on it and
   appends the result to a sequence; the sequence is concatenated behind the loop;
2. a stage that ends in a pooling op (`Op.tile_weights`): each round adds the tile's sums to two float32 accumulators,
   so neither the queries nor the normalised tokens ever exist for all tokens;
3. a last tile may be shorter; a free number of tokens is read from the input at run time;
4. a stage without a product, and one whose tokens fit one tile, stay as they are.

The sequence holds the finished tiles and lets the runtime free the stage's input before they are joined, so the
peak is twice the token tensor and one tile's activations. Scan outputs of a Loop are joined inside it, while its
inputs are still held: three times. The arithmetic for each token is unchanged; pooled sums are added tile by tile.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from infsa_deploy.errors import UsageError
from infsa_deploy.graph.edit import NodeList, free_name
from infsa_deploy.graph.passes.narrowed_shape import narrowed_shape
from infsa_deploy.graph.passes.pool_sums import PoolSums
from infsa_deploy.graph.passes.token_stages import Stage, find_stages, row_wise, token_axes
from infsa_deploy.graph.shapes import infer_all_shapes
from infsa_deploy.ops import OPS_BY_NAME

INT64, BOOL = ir.DataType.INT64, ir.DataType.BOOL


def tile_tokens(model: ir.Model, tile: int) -> ir.Model:
    """Turn the token-wise stages of a model into loops over tiles.

    Args:
        model: changed in place. For runtimes that have sequences, as ONNX Runtime does; TensorRT has none.
        tile: tokens a round, at least 1.
    Returns: the same model.
    Raises: UsageError for an impossible tile.
    """
    if tile < 1:
        raise UsageError(f"a tile of {tile} tokens is not possible", "a round takes at least 1", "pass 4096")
    infer_all_shapes(model)
    axes = token_axes(model.graph, tile)
    for stage in find_stages(model.graph, axes):
        _Tiling(model.graph, stage, axes, tile).run()
    RemoveUnusedNodesPass()(model)
    return model


class _Tiling:
    """One stage on its way into a loop."""

    def __init__(self, graph: ir.Graph, stage: Stage, axes: dict[ir.Value, int], tile: int) -> None:
        self._graph, self._stage, self._axes, self._tile = graph, stage, axes, tile
        prefix = free_name(graph, f"{stage.end.outputs[0].name}_tiles")
        self._outer, self._body = NodeList(graph, prefix), NodeList(graph, f"{prefix}_body")
        self._round = ir.Value(name=f"{prefix}_body_round", type=ir.TensorType(INT64), shape=ir.Shape([]))
        self._go = ir.Value(name=f"{prefix}_body_go", type=ir.TensorType(BOOL), shape=ir.Shape([]))
        self._sliced: dict[ir.Value, ir.Value] = {}
        self._bounds: tuple[ir.Value, ir.Value] | None = None

    def run(self) -> None:
        """Replace what the stage computes."""
        tiles: dict[ir.Value, ir.Value] = {}
        for node in self._stage.nodes:
            self._copy(node, tiles)
        if self._stage.pools:
            self._add_up(tiles)
        else:
            self._collect(tiles[self._stage.end.outputs[0]])

    def _copy(self, node: ir.Node, tiles: dict[ir.Value, ir.Value]) -> None:
        """Repeat a node of the stage in the loop's body, on one tile."""
        output = node.outputs[0]
        axis = self._axes[output]
        carried = row_wise(node, axis)
        assert carried is not None
        inputs = [
            value if value is None or a is None else self._of_tile(value, a, tiles)
            for value, a in zip(node.inputs, carried, strict=True)
        ]
        attributes = [attribute for name, attribute in node.attributes.items() if name != "allowzero"]
        if node.op_type in ("Reshape", "Expand"):
            inputs[1] = self._body.ints(*(narrowed_shape(node, axis, None) or ()))
        copy = ir.Node(node.domain, node.op_type, inputs, attributes, num_outputs=1)
        tiles[output] = self._body.append(copy, output.dtype)

    def _of_tile(self, value: ir.Value, axis: int, tiles: dict[ir.Value, ir.Value]) -> ir.Value:
        if value in tiles:
            return tiles[value]
        if value not in self._sliced:
            if self._bounds is None:
                step = self._body.ints(self._tile)
                first = self._body.add("Mul", self._body.add("Reshape", self._round, self._body.ints(1)), step)
                self._bounds = first, self._body.add("Add", first, step)
            self._sliced[value] = self._body.add("Slice", value, *self._bounds, self._body.ints(axis))
        return self._sliced[value]

    def _rounds(self) -> ir.Value:
        """How many tiles there are, read at run time where the number of tokens is free."""
        value = next(iter(self._sliced))
        axis = self._axes[value]
        length = value.shape[axis] if value.shape is not None else None
        if isinstance(length, int):
            return self._outer.constant(np.array(-(-length // self._tile), np.int64))
        size = self._outer.add("Shape", value, dtype=INT64, start=axis, end=axis + 1)
        tokens = self._outer.add("Squeeze", size, self._outer.ints(0))
        more = self._outer.add("Add", tokens, self._outer.constant(np.array(self._tile - 1, np.int64)))
        return self._outer.add("Div", more, self._outer.constant(np.array(self._tile, np.int64)))

    def _loop(self, start: list[ir.Value], carried: list[ir.Value], results: list[ir.Value]) -> list[ir.Value]:
        """The loop node; `carried` enter a round, `results` leave it."""
        going = self._body.add("Identity", self._go)
        body = ir.Graph(
            [self._round, self._go, *carried], [going, *results], nodes=self._body.nodes, name=f"{self._body.prefix}"
        )
        inputs = [self._rounds(), None, *start]
        loop = ir.Node("", "Loop", inputs, [ir.AttrGraph("body", body)], num_outputs=len(results))
        self._outer.append(loop, None)
        for output, value in zip(loop.outputs, start, strict=True):
            output.type = value.type
        return list(loop.outputs)

    def _collect(self, tile: ir.Value) -> None:
        old = self._stage.end.outputs[0]
        axis, kind = self._axes[old], tile.dtype
        assert kind is not None
        sequence = ir.SequenceType(ir.TensorType(kind))
        empty = ir.Node("", "SequenceEmpty", [], [ir.AttrInt64("dtype", kind.value)])
        start = self._outer.append(empty, None)
        before = ir.Value(name=f"{self._body.prefix}_done", type=sequence)
        after = self._body.add("SequenceInsert", before, tile)
        start.type = after.type = sequence
        (tiles,) = self._loop([start], [before], [after])
        self._replace({old: self._outer.add("ConcatFromSequence", tiles, dtype=kind, axis=axis)})

    def _add_up(self, tiles: dict[ir.Value, ir.Value]) -> None:
        node = self._stage.end
        op = OPS_BY_NAME[node.op_type]
        sums = PoolSums(op, node, self._outer)
        tokens = [value for n in op.contract.token_inputs if (value := node.inputs[n]) is not None]
        added = sums.of_tile(self._body, [self._of_tile(value, self._axes[value], tiles) for value in tokens])
        start = [self._outer.constant(zero) for zero in sums.zeros]
        carried = [
            ir.Value(name=f"{self._body.prefix}_sum_{n}", type=ir.TensorType(ir.DataType.FLOAT)) for n in range(2)
        ]
        results = [self._body.add("Add", old, new) for old, new in zip(carried, added, strict=True)]
        total, weighted = self._loop(start, carried, results)
        self._replace(dict(zip(node.outputs, sums.finish(self._outer, total, weighted), strict=False)))

    def _replace(self, results: dict[ir.Value, ir.Value]) -> None:
        self._graph.insert_before(self._stage.end, self._outer.nodes)
        for old, new in results.items():
            new.shape = old.shape
            if old in self._axes:
                self._axes[new] = self._axes[old]
            if old.is_graph_output():
                old.name, new.name = free_name(self._graph, f"{old.name}_untiled"), old.name
            old.replace_all_uses_with(new, replace_graph_outputs=True)
