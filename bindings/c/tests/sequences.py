"""Passes a sequence and an absent optional value through ctypes: LIBRARY PLAN."""

import ctypes
import sys
from ctypes import byref, c_int64, c_size_t, c_uint32, c_void_p


class Tensor(ctypes.Structure):
    _fields_ = [("dtype", c_uint32), ("rank", c_uint32), ("dims", ctypes.POINTER(c_int64)), ("data", c_void_p), ("bytes", c_size_t)]


F32, SEQUENCE, OPTIONAL = 2, 1, 2
library = ctypes.CDLL(sys.argv[1])
library.of_error_text.restype = ctypes.c_char_p


def call(function, *arguments):
    if getattr(library, function)(*arguments) != 0:
        sys.exit(f"{function}: {library.of_error_text().decode()}")


def tensor(elements):
    value, data = c_void_p(), (ctypes.c_float * len(elements))(*elements)
    given = Tensor(F32, 1, (c_int64 * 1)(len(elements)), ctypes.addressof(data), ctypes.sizeof(data))
    call("of_value_new_tensor", byref(given), byref(value))
    return value


def elements(value):
    result = Tensor()
    call("of_value_tensor", value, byref(result))
    return list((ctypes.c_float * result.dims[0]).from_address(result.data))


def items(value, expected):
    kind, count = c_uint32(), c_size_t()
    call("of_value_kind", value, byref(kind))
    call("of_value_count", value, byref(count))
    assert kind.value == expected
    found = [c_void_p() for _ in range(count.value)]
    for index, item in enumerate(found):
        call("of_value_item", value, c_size_t(index), byref(item))
    return found


plan, session, sequence, absent, result = (c_void_p() for _ in range(5))
call("of_plan_open", sys.argv[2].encode(), byref(plan))
call("of_session_new", plan, None, byref(session))
made = [tensor([float(n)] * n) for n in (1, 2, 3)]
call("of_value_new_sequence", (c_void_p * 3)(*made), c_size_t(3), byref(sequence))
call("of_value_new_optional", None, byref(absent))
call("of_session_set_input_value", session, c_size_t(0), sequence)
call("of_session_set_input_value", session, c_size_t(1), absent)
for value in [*made, sequence, absent]:
    library.of_value_free(value)
call("of_session_run", session)
call("of_session_output_value", session, c_size_t(0), byref(result))
print([elements(item) for item in items(result, SEQUENCE)])
call("of_session_output_value", session, c_size_t(1), byref(result))
print("present" if items(result, OPTIONAL) else "absent")
library.of_session_free(session)
library.of_plan_free(plan)
