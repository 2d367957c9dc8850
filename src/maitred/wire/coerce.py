"""The one coercion table: how JSON, raw bytes and Python values become tensors, and tensors become those again.

Rules (published in docs/coercion.md): a value is never narrowed silently; decimals go to the nearest value of a float
dtype and never to an integer or bool; integers are exact over their whole range; times are never rounded; what does not
fit is Malformed and names the tensor and the place. Each way in or out has a file of its own; this is all of them.
"""

from __future__ import annotations

from maitred.wire.arrays import dtype_of as dtype_of
from maitred.wire.arrays import from_array as from_array
from maitred.wire.arrays import plain as plain
from maitred.wire.arrays import to_array as to_array
from maitred.wire.direct import from_python as from_python
from maitred.wire.dtypes import DATATYPES as DATATYPES
from maitred.wire.dtypes import DTYPES as DTYPES
from maitred.wire.dtypes import FLOATS as FLOATS
from maitred.wire.dtypes import INTEGERS as INTEGERS
from maitred.wire.dtypes import MAX_DIMENSIONS as MAX_DIMENSIONS
from maitred.wire.dtypes import MAX_ELEMENTS as MAX_ELEMENTS
from maitred.wire.dtypes import NAN_NAMES as NAN_NAMES
from maitred.wire.dtypes import NUMPY_TYPES as NUMPY_TYPES
from maitred.wire.dtypes import Array as Array
from maitred.wire.dtypes import NanPolicy as NanPolicy
from maitred.wire.dtypes import checked_shape as checked_shape
from maitred.wire.dtypes import decoded as decoded
from maitred.wire.dtypes import is_text as is_text
from maitred.wire.dtypes import json_kind as json_kind
from maitred.wire.elements import MAX_FILL as MAX_FILL
from maitred.wire.elements import NOT_FLAT as NOT_FLAT
from maitred.wire.elements import from_texts as from_texts
from maitred.wire.elements import packer as packer
from maitred.wire.json_tensors import from_json as from_json
from maitred.wire.json_tensors import is_long as is_long
from maitred.wire.json_tensors import lacks_number as lacks_number
from maitred.wire.json_tensors import rows_in_pieces as rows_in_pieces
from maitred.wire.json_tensors import rows_json as rows_json
from maitred.wire.json_tensors import to_json_values as to_json_values
from maitred.wire.json_tensors import unprintable as unprintable
from maitred.wire.raw import from_raw as from_raw
from maitred.wire.raw import to_raw as to_raw
