from . import ANY_SOURCE as ANY_SOURCE
from . import ANY_TAG as ANY_TAG
from . import AVG as AVG
from . import BAND as BAND
from . import BOR as BOR
from . import BXOR as BXOR
from . import COMM_WORLD as COMM_WORLD
from . import IN_PLACE as IN_PLACE
from . import MAX as MAX
from . import MIN as MIN
from . import PROD as PROD
from . import SUM as SUM
from . import UNDEFINED as UNDEFINED
from . import Comm as Comm
from . import Error as Exception
from . import Op as Op
from . import Request as Request

Intracomm = Comm
COMM_NULL: None
REQUEST_NULL: None
SIGNED_CHAR: str
UNSIGNED_CHAR: str
BYTE: str
CHAR: str
SHORT: str
UNSIGNED_SHORT: str
INT: str
UNSIGNED: str
LONG: str
UNSIGNED_LONG: str
LONG_LONG: str
UNSIGNED_LONG_LONG: str
INT8_T: str
INT16_T: str
INT32_T: str
INT64_T: str
UINT8_T: str
UINT16_T: str
UINT32_T: str
UINT64_T: str
FLOAT: str
DOUBLE: str
REAL4: str
REAL8: str

def Wtime() -> float: ...
