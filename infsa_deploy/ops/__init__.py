"""The custom ops of ONNX domain `infsa`: one list, everything else loops over it."""

from infsa_deploy.ops import centrality_pool, energy_pool, neumann_attention
from infsa_deploy.ops.contract import Op as Op

OPS: tuple[Op, ...] = (neumann_attention.OP, energy_pool.OP, centrality_pool.OP)
OPS_BY_NAME = {op.contract.name: op for op in OPS}
