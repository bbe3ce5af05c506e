"""Where a chain lives: mesh, layout, placement, the one shard_map, gather, drawing."""

from ._layout import ChainLayout as ChainLayout
from ._mesh import CHAIN as CHAIN
from ._mesh import DATA as DATA
from ._mesh import as_chain_mesh as as_chain_mesh
from ._mesh import chain_mesh as chain_mesh
from ._mesh import idle_cores as idle_cores
from ._mesh import set_host_devices as set_host_devices
from ._over import chain_program as chain_program
from ._over import over_chains as over_chains
from ._picture import Part as Part
from ._place import chain_keys as chain_keys
from ._place import gather as gather
from ._place import place as place
from ._place import put as put
from ._place import root_key as root_key
from ._show import ShardingPicture as ShardingPicture
from ._show import show_sharding as show_sharding
