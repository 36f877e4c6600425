"""Move the selection of a few tokens back to where tokens meet, so that only those tokens are computed.

A classifier reads one token of the last block's output, yet a traced graph normalises, projects and feeds forward
all of them and drops the rest at the end. A `Gather` or `Slice` on the token axis commutes with every operator
that treats tokens alike; this pass finds how far back it commutes and cuts the tokens there.

Every use of a value asks for some rows of one axis, or for all of it. Going through the graph backwards, a node is
computed for fewer rows if all that is asked of its output is a selection and the node is token-wise
(`token_axis.carriers`); it then asks its own inputs for those rows. Where some other use needs the whole value,
nothing would be saved further up, and the selection is placed right there. Nodes are narrowed where they stand,
never copied, so no work is done twice. The cases:

 1. a scalar index (`x[:, 0]`) keeps its axis, at length 1, while it moves; a `Squeeze` takes the axis away last;
 2. a 1-D index or a slice keeps its axis; with a step, backwards or from the end as well;
 3. operators on each element or within each row: activations, casts, normalisation and softmax on another axis;
 4. an operand that is broadcast along the token axis (rank too small, or length 1) is used whole;
 5. two token tensors (a residual sum): the rows are selected in both;
 6. `MatMul` and `Gemm`: rows of the result are rows of the left operand, columns are columns of the right one; so
    of softmax attention only the selected queries are computed;
 7. `Reshape`, `Transpose`, `Squeeze`, `Unsqueeze`, `Expand` that keep the token axis; shapes are rewritten;
 8. a value that also has to be whole elsewhere (another use, a graph output, a use in a subgraph): cut there;
 9. several selections of one value (class token and distillation token): their union moves, each takes its part;
10. a selection of a selection: the two become one;
11. `Concat` on the token axis: rows that lie in one operand are taken from it alone;
12. a selected constant (positions): becomes a smaller constant, the old one stays for its other uses;
13. negative indices: counted from the front where the length is known, kept as they are where it is free;
14. a free length: an index or a slice of one row moves (the rows it names must exist); a longer slice stays;
15. half of the rows or more: stays, as nothing to speak of would be saved;
16. a `Gemm` on merged rows, split again afterwards (torch's MultiheadAttention): made a product on [B, N, E] first;
17. never crossed: whatever mixes rows (a reduction, softmax or normalisation over tokens, the contracted axis of a
    product, a reshape that merges the axis) and every operator of another domain (`infsa` among them);
18. the first tokens of an `infsa` op with the attribute `rows` (the class token comes first): not crossed either, as
    the op reads all rows, but the attribute makes it compute no others. Other tokens are selected after it.

Exact: each remaining row is the same expression of the same inputs. A matrix product with fewer rows may run in
another kernel, which can change the order of its sums and so the last bits.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from infsa_deploy.errors import ModelError
from infsa_deploy.graph.edit import add_initializer, free_name
from infsa_deploy.graph.passes.narrowed_shape import narrowed_shape
from infsa_deploy.graph.passes.token_axis import carriers
from infsa_deploy.graph.passes.token_rows import Rows, drops_axis, leading, operand_holding, pays, selection
from infsa_deploy.graph.passes.unflatten import unflatten
from infsa_deploy.graph.shapes import infer_all_shapes
from infsa_deploy.ops import OPS_BY_NAME
from infsa_deploy.ops.contract import DOMAIN

MINIMUM_OPSET = 18


@dataclass
class _Plan:
    """What the backward walk found.

    Attributes:
        asked: the rows that use (node, input number) asks for; a use not listed asks for all.
        narrowed: nodes computed for these rows of their output only.
        passed: nodes that vanish, because input number i already holds the rows asked of them.
        selections: the nodes that select, where the walk starts.
        blocked: nodes of which only some rows are asked, but which are not token-wise as they stand.
    """

    asked: dict[tuple[ir.Node, int], Rows] = field(default_factory=dict)
    narrowed: dict[ir.Node, Rows] = field(default_factory=dict)
    passed: dict[ir.Node, int] = field(default_factory=dict)
    selections: set[ir.Node] = field(default_factory=set)
    blocked: list[ir.Node] = field(default_factory=list)


def hoist_token_selection(model: ir.Model) -> ir.Model:
    """Compute token-wise operators only for the tokens that a later `Gather` or `Slice` keeps.

    Args:
        model: changed in place; opset 18 or later. Shapes are inferred where they are missing.
    Returns: the same model. Inputs and outputs keep their names, types and shapes.
    Raises: ModelError on an older opset.
    """
    opset = model.graph.opset_imports.get("", 0)
    if opset < MINIMUM_OPSET:
        raise ModelError(
            f"token selection cannot be hoisted in a model of opset {opset}",
            f"operators changed their meaning before opset {MINIMUM_OPSET}",
            "export with opset 20, or convert the model with onnx.version_converter",
        )
    infer_all_shapes(model)
    RemoveUnusedNodesPass()(model)
    plan = _plan(model.graph)
    while [node for node in plan.blocked if unflatten(node)]:
        RemoveUnusedNodesPass()(model)
        plan = _plan(model.graph)
    _Rewriter(model.graph, plan).run()
    RemoveUnusedNodesPass()(model)
    return model


def _plan(graph: ir.Graph) -> _Plan:
    plan = _Plan()
    for node in reversed(graph):
        wanted = _asked_of(node, plan)
        own = selection(node)
        if own is not None and wanted is not None and wanted.axis == own.axis and not drops_axis(node):
            plan.asked[node, 0] = Rows(own.axis, tuple(own.index[i] for i in wanted.index))
            plan.narrowed[node], plan.passed[node] = wanted, 0
        elif own is not None and pays(own, node.inputs[0]):
            plan.asked[node, 0] = own
            plan.selections.add(node)
        elif wanted is not None:
            _cross(node, wanted, plan)
    return plan


def _asked_of(node: ir.Node, plan: _Plan) -> Rows | None:
    """The rows that all uses of the node's outputs ask for together, or None where all rows are needed."""
    used = [output for output in node.outputs if output.uses() or output.is_graph_output()]
    several = len(used) > 1 or (used and used[0] is not node.outputs[0])
    if not used or (several and node.op_type != "Split"):
        return None
    asked: list[Rows] = []
    for output in used:
        if output.is_graph_output():
            return None
        for use in output.uses():
            rows = plan.asked.get((use.node, use.idx)) if use.node.graph is node.graph else None
            if rows is None:
                return None
            asked.append(rows)
    if len({rows.axis for rows in asked}) != 1:
        return None
    union = Rows(asked[0].axis, tuple(dict.fromkeys(index for rows in asked for index in rows.index)))
    return union if pays(union, node.outputs[0]) else None


def _cross(node: ir.Node, wanted: Rows, plan: _Plan) -> None:
    if node.domain == DOMAIN and OPS_BY_NAME[node.op_type].contract.rows_axis == wanted.axis:
        first = leading(wanted)
        if first is not None:
            plan.narrowed[node] = first
        return
    found = carriers(node, wanted.axis)
    if found is not None:
        for number, axis in enumerate(found):
            if axis is not None:
                plan.asked[node, number] = Rows(axis, wanted.index)
        plan.narrowed[node] = wanted
        return
    operand = operand_holding(node, wanted) if node.op_type == "Concat" and node.domain == "" else None
    if operand is None:
        plan.blocked.append(node)
    else:
        number, rows = operand
        plan.asked[node, number] = rows
        plan.passed[node] = number
        plan.narrowed[node] = wanted


class _Rewriter:
    """Carries a plan out, front to back, so that every input is narrowed before the node that uses it."""

    def __init__(self, graph: ir.Graph, plan: _Plan) -> None:
        self._graph = graph
        self._plan = plan
        self._taken: dict[tuple[ir.Value, Rows], ir.Value] = {}
        self._moved: set[tuple[ir.Node, int]] = set()

    def run(self) -> None:
        """Rewrite every node of the plan."""
        for node in tuple(self._graph):
            if node in self._plan.passed:
                self._pass(node)
            elif node in self._plan.narrowed:
                self._narrow(node)
            elif node in self._plan.selections and (node, 0) in self._moved:
                self._finish(node)

    def _pass(self, node: ir.Node) -> None:
        number = self._plan.passed[node]
        rows = self._rows_of(node, number)
        self._renumber(node)
        for output in node.outputs:
            output.replace_all_uses_with(rows)

    def _narrow(self, node: ir.Node) -> None:
        rows = self._plan.narrowed[node]
        if node.op_type in ("Reshape", "Expand"):
            shape = narrowed_shape(node, rows.axis, len(rows.index))
            node.attributes.pop("allowzero", None)
            node.replace_input_with(
                1, add_initializer(self._graph, f"{node.outputs[0].name}_shape", np.array(shape, np.int64))
            )
        if node.domain == DOMAIN:
            node.attributes["rows"] = ir.AttrInt64("rows", len(rows.index))
        for number in range(len(node.inputs)):
            if (node, number) in self._plan.asked:
                node.replace_input_with(number, self._rows_of(node, number))
        for output in node.outputs:
            if output.shape is not None:
                output.shape = _with_length(output.shape, rows)
        self._renumber(node)

    def _renumber(self, node: ir.Node) -> None:
        """State what the node's uses ask for as rows of its narrowed output."""
        kept = self._plan.narrowed[node].index
        for output in node.outputs:
            for use in output.uses():
                asked = self._plan.asked[use.node, use.idx]
                self._plan.asked[use.node, use.idx] = Rows(asked.axis, tuple(map(kept.index, asked.index)))
                self._moved.add((use.node, use.idx))

    def _finish(self, node: ir.Node) -> None:
        """Replace a selection by what is left of it once its input holds few rows."""
        asked, old = self._plan.asked[node, 0], node.outputs[0]
        new = self._rows_of(node, 0)
        if drops_axis(node):
            axes = add_initializer(self._graph, f"{old.name}_axis", np.array([asked.axis], np.int64))
            new = self._insert(node, ir.Node("", "Squeeze", [new, axes]), old.shape)
        elif old.is_graph_output():
            new = self._insert(node, ir.Node("", "Identity", [new]), old.shape)
        if old.is_graph_output():
            old.name, new.name = free_name(self._graph, f"{old.name}_whole"), old.name
        old.replace_all_uses_with(new, replace_graph_outputs=True)

    def _rows_of(self, node: ir.Node, number: int) -> ir.Value:
        """The rows that a use asks for, taken before the node unless the value is just those rows."""
        value, rows = node.inputs[number], self._plan.asked[node, number]
        assert value is not None
        length = value.shape[rows.axis] if value.shape is not None else None
        if isinstance(length, int) and rows.index == tuple(range(length)):
            return value
        if (value, rows) not in self._taken:
            constant = None if value.is_graph_input() else ir.convenience.get_const_tensor(value)
            if constant is None:
                self._taken[value, rows] = self._gather(node, value, rows)
            else:
                kept = np.take(constant.numpy(), rows.index, rows.axis)
                self._taken[value, rows] = add_initializer(self._graph, f"{value.name}_rows", kept)
        return self._taken[value, rows]

    def _gather(self, before: ir.Node, value: ir.Value, rows: Rows) -> ir.Value:
        index = add_initializer(self._graph, f"{value.name}_index", np.array(rows.index, np.int64))
        gather = ir.Node("", "Gather", [value, index], {"axis": ir.AttrInt64("axis", rows.axis)})
        return self._insert(before, gather, None if value.shape is None else _with_length(value.shape, rows))

    def _insert(self, before: ir.Node, node: ir.Node, shape: ir.Shape | None) -> ir.Value:
        output, source = node.outputs[0], node.inputs[0]
        output.name, output.shape = free_name(self._graph, f"{before.outputs[0].name}_{node.op_type.lower()}"), shape
        if source is not None and source.dtype is not None:
            output.dtype = source.dtype
        self._graph.insert_before(before, node)
        return output


def _with_length(shape: ir.Shape, rows: Rows) -> ir.Shape:
    dims = list(shape)
    dims[rows.axis] = len(rows.index)
    return ir.Shape(dims)
