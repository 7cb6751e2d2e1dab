"""Recognizes digits through ctypes: LIBRARY PLAN IMAGES.npy."""

import ctypes
import sys


class Tensor(ctypes.Structure):
    _fields_ = [
        ("dtype", ctypes.c_uint32),
        ("rank", ctypes.c_uint32),
        ("dims", ctypes.POINTER(ctypes.c_int64)),
        ("data", ctypes.c_void_p),
        ("bytes", ctypes.c_size_t),
    ]


F32 = 2
library_file, plan_file, images_file = sys.argv[1:]
library = ctypes.CDLL(library_file)
library.of_error_text.restype = ctypes.c_char_p


def call(function, *arguments):
    if getattr(library, function)(*arguments) != 0:
        sys.exit(f"{function}: {library.of_error_text().decode()}")


with open(images_file, "rb") as file:
    images = file.read()[-8 * 64 * 4 :]
plan, session, result = ctypes.c_void_p(), ctypes.c_void_p(), Tensor()
call("of_plan_open", plan_file.encode(), ctypes.byref(plan))
call("of_session_new", plan, None, ctypes.byref(session))
dims = (ctypes.c_int64 * 4)(8, 1, 8, 8)
pixels = ctypes.create_string_buffer(images, len(images))
image = Tensor(F32, 4, dims, ctypes.addressof(pixels), len(images))
call("of_session_set_input", session, ctypes.c_size_t(0), ctypes.byref(image))
call("of_session_run", session)
call("of_session_output", session, ctypes.c_size_t(0), ctypes.byref(result))
rows, columns = result.dims[0], result.dims[1]
values = (ctypes.c_float * (rows * columns)).from_address(result.data)
best = [max(range(columns), key=lambda digit: values[row * columns + digit]) for row in range(rows)]
print("digits:", *best)
library.of_session_free(session)
library.of_plan_free(plan)
