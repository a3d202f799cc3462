# SPDX-License-Identifier: Apache-2.0
"""A client of CUPTI's activity API, for tests: a buffer, and the records that came back in it."""
import ctypes

MEMCPY, MEMSET, RUNTIME, CONCURRENT_KERNEL, EXTERNAL_CORRELATION, MEMORY2 = 1, 2, 5, 10, 39, 49
ALLOCATION, RELEASE = 1, 2
CUSTOM2 = 5
FORCED = 1

BUFFER_BYTES = 1 << 20

u32, u64 = ctypes.c_uint32, ctypes.c_uint64


class Record(ctypes.Structure):
    _fields_ = [("kind", u32)]


# The first fields of CUpti_ActivityMemory4, CUpti_ActivityKernel10 and all of CUpti_ActivityExternalCorrelation.
class Memory(ctypes.Structure):
    _fields_ = [("kind", u32), ("operation", u32), ("memory_kind", u32), ("correlation", u32), ("address", u64),
                ("size_bytes", u64), ("timestamp", u64)]


class Kernel(ctypes.Structure):
    _fields_ = [("kind", u32), ("unused", u32 * 3), ("start", u64), ("end", u64), ("completed", u64), ("device", u32),
                ("context", u32), ("stream", u32), ("geometry", u32 * 10), ("correlation", u32),
                ("grid", u64), ("name", ctypes.c_char_p)]


class External(ctypes.Structure):
    _fields_ = [("kind", u32), ("external_kind", u32), ("id", u64), ("correlation", u32)]


STRUCTURES = {MEMORY2: Memory, CONCURRENT_KERNEL: Kernel, EXTERNAL_CORRELATION: External}

RequestCallback = ctypes.CFUNCTYPE(None, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_size_t),
                                   ctypes.POINTER(ctypes.c_size_t))
CompleteCallback = ctypes.CFUNCTYPE(None, ctypes.c_void_p, u32, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)
TimestampCallback = ctypes.CFUNCTYPE(u64)
SubscriberCallback = ctypes.CFUNCTYPE(None, ctypes.c_void_p, u32, u32, ctypes.c_void_p)


def call(name, *arguments):
    """Calls a function of the CUPTI that this process has; raises unless it succeeds."""
    result = getattr(ctypes.CDLL(None), name)(*arguments)
    if result != 0:
        raise RuntimeError(f"{name} returned {result}")


class Client:
    """Collects `kinds` while it is entered, from the thread that entered it: its callbacks need Python's lock."""

    def __init__(self, *kinds):
        self.kinds = kinds
        self.records = {kind: [] for kind in kinds}
        self._buffer = (u64 * (BUFFER_BYTES // 8))()  # of u64, to be aligned as records are
        self._request = RequestCallback(self._give_buffer)
        self._complete = CompleteCallback(self._take_records)

    def _give_buffer(self, buffer, size_bytes, max_records):
        buffer[0] = ctypes.addressof(self._buffer)
        size_bytes[0] = BUFFER_BYTES
        max_records[0] = 0

    def _take_records(self, context, stream, buffer, size_bytes, valid_bytes):
        record = ctypes.POINTER(Record)()
        next_record = ctypes.CDLL(None).cuptiActivityGetNextRecord
        while next_record(ctypes.c_void_p(buffer), ctypes.c_size_t(valid_bytes), ctypes.byref(record)) == 0:
            if record.contents.kind not in self.records:
                continue  # another client's
            structure = STRUCTURES.get(record.contents.kind, Record)
            self.records[record.contents.kind].append(
                structure.from_buffer_copy(ctypes.string_at(record, ctypes.sizeof(structure))))

    def __enter__(self):
        call("cuptiActivityRegisterCallbacks", self._request, self._complete)
        for kind in self.kinds:
            call("cuptiActivityEnable", kind)
        return self

    def __exit__(self, *_):
        for kind in self.kinds:
            call("cuptiActivityDisable", kind)
        call("cuptiActivityFlushAll", FORCED)
