# SPDX-License-Identifier: Apache-2.0
"""Controls of the dry CUPTI in this process; what each does is in cupti_control.h."""
import ctypes

NOT_COMPATIBLE, INSUFFICIENT_PRIVILEGES, MULTIPLE_SUBSCRIBERS = 14, 35, 39


def _function(name, result, *arguments):
    try:
        function = getattr(ctypes.CDLL(None), name)
    except AttributeError:
        raise RuntimeError(f"cannot find {name}: the dry CUPTI is not loaded; run under scripts/drycuda") from None
    function.restype, function.argtypes = result, arguments
    return function


def refuse_subscribe(result):
    _function("drycupti_refuse_subscribe", None, ctypes.c_int32)(result)


def refuse_enable(result):
    _function("drycupti_refuse_enable", None, ctypes.c_int32)(result)


def drop_records(count):
    _function("drycupti_drop_records", None, ctypes.c_uint64)(count)


def wrong_size_of(index):
    _function("drycupti_wrong_size_of", None, ctypes.c_int64)(index)


def is_enabled(kind):
    return bool(_function("drycupti_is_enabled", ctypes.c_int32, ctypes.c_int32)(kind))


def buffers_held():
    return _function("drycupti_buffers_held", ctypes.c_uint64)()


def reset():
    _function("drycupti_reset", None)()
