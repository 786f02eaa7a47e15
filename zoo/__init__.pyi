"""The public names of zoo, each written once: `__init__.py` imports them from here on first use."""

from zoo import functional as functional
from zoo.api.commands import diagnose as diagnose
from zoo.api.commands import evaluate as evaluate
from zoo.api.commands import fit as fit
from zoo.api.commands import generate as generate
from zoo.api.commands import predict as predict
from zoo.api.comparison import ComparisonFigure as ComparisonFigure
from zoo.api.comparison import ComparisonResult as ComparisonResult
from zoo.api.comparison import compare as compare
from zoo.api.results import Diagnosis as Diagnosis
from zoo.api.results import Run as Run
from zoo.api.results import load as load
from zoo.api.tools import bench as bench
from zoo.api.tools import convert as convert
from zoo.api.tools import export as export
from zoo.api.tools import verify as verify
from zoo.attention.chain import Chain as Chain
from zoo.attention.encoding import Dims as Dims
from zoo.attention.encoding import Encoding as Encoding
from zoo.attention.functional import Attention as Attention
from zoo.attention.functional import encoding as encoding
from zoo.attention.functional import encoding_class as encoding_class
from zoo.attention.functional import encoding_names as encoding_names
from zoo.attention.kv_cache import KeyValueCache as KeyValueCache
from zoo.attention.kv_cache import SegmentMemory as SegmentMemory
from zoo.config import Recipe as Recipe
from zoo.data.spec import ImageSpec as ImageSpec
from zoo.data.spec import TextClassificationSpec as TextClassificationSpec
from zoo.data.spec import TextSpec as TextSpec
from zoo.data.spec import VideoSpec as VideoSpec
from zoo.errors import CheckpointError as CheckpointError
from zoo.errors import DataError as DataError
from zoo.errors import NonFiniteError as NonFiniteError
from zoo.errors import OptionError as OptionError
from zoo.errors import RecipeError as RecipeError
from zoo.errors import Stopped as Stopped
from zoo.errors import ZooError as ZooError
from zoo.integrations.equip import EquipReport as EquipReport
from zoo.integrations.equip import equip as equip
from zoo.integrations.equip import save as save
from zoo.integrations.equip import unequip as unequip
from zoo.run.build import build_model as build_model
from zoo.run.load import load_recipe as load_recipe
from zoo.version import __version__ as __version__

__all__: list[str]
