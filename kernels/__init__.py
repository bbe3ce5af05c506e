"""What a draw is: kernels and adaptation, written for one chain."""

from ._adaptation import Adaptation as Adaptation
from ._adaptation import StanWindows as StanWindows
from ._adaptation import Tuning as Tuning
from ._adaptation import Window as Window
from ._adaptation import check_tunable as check_tunable
from ._base import Batching as Batching
from ._base import Info as Info
from ._base import Kernel as Kernel
from ._base import LogDensityFn as LogDensityFn
from ._base import Params as Params
from ._base import Rows as Rows
from ._base import setting as setting
from ._blackjax import FromBlackjax as FromBlackjax
from ._blackjax import from_blackjax as from_blackjax
from ._engine import scan_block as scan_block
from ._ensemble import Ensemble as Ensemble
from ._hmc import HMC as HMC
from ._nuts import NUTS as NUTS
from ._pooled import PooledWindows as PooledWindows
from ._warmup import warmup_block as warmup_block
