/* Ops and backends in a shared library: what of-opt --library loads.
 *
 * The library exports of_ops, of_backend, or both. Every function gives 0 where it did what it is for; else it has
 * written one sentence to the sink. Functions may be called from any thread; an executable is called by one thread at a
 * time. Nothing that one side allocates is freed by the other. Versions that differ are refused. */
#ifndef OF_LIBRARY_H
#define OF_LIBRARY_H

#include <stddef.h>
#include <stdint.h>

/* Bytes that the caller owns for the time of the call. */
typedef struct { const uint8_t *data; size_t len; } OfBytes;

/* Where text or bytes are written: any number of calls, the parts follow one another. */
typedef struct { void *context; void (*write)(void *context, const uint8_t *data, size_t len); } OfSink;

/* Element types, numbered as in the plan's format (plan/src/dtype.rs has all of them); 0 is an operand that is left out. */
enum { OF_F64 = 1, OF_F32 = 2, OF_F16 = 3, OF_BF16 = 4, OF_I8 = 10, OF_I16 = 11, OF_I32 = 12, OF_I64 = 13,
       OF_U8 = 15, OF_U16 = 16, OF_U32 = 17, OF_U64 = 18, OF_BOOL = 19 };

/* Row-major elements. Where an op is asked for types, data is null unless the elements are known then; the rank may be
 * OF_NO_RANK; and extents that are not known are negative: equal ones have equal numbers, which may be given back as
 * they are, and OF_UNKNOWN stands for one of which nothing is known. */
typedef struct { uint32_t dtype, rank; const int64_t *dims; const uint8_t *data; size_t len; } OfTensor;
#define OF_NO_RANK UINT32_MAX
#define OF_UNKNOWN INT64_MIN

/* Memory for the results: give(context, index, dtype, dims, rank) is where result `index` goes, null if it does not fit. */
typedef struct {
    void *context;
    uint8_t *(*give)(void *context, size_t index, uint32_t dtype, const int64_t *dims, uint32_t rank);
    size_t count;
} OfResults;

/* ---- ops ---- */

#define OF_OPS_VERSION 1

enum { OF_ONE = 0, OF_OPTIONAL = 1, OF_VARIADIC = 2 };
/* An operand or result; results are OF_ONE. */
typedef struct { const char *name; uint32_t arity; } OfSlot;

enum { OF_LEFT_OUT = 0, OF_ATTR_BOOL = 1, OF_INTEGER = 2, OF_FLOAT = 3, OF_STRING = 4, OF_INTEGERS = 5, OF_FLOATS = 6 };
typedef struct { const char *name; uint32_t kind, optional; } OfAttrSlot;
/* Its value: a truth value or integer in integer, a float in number; of the others count characters, int64_t or double
 * in list. */
typedef struct { uint32_t kind; int64_t integer; double number; const void *list; size_t count; } OfAttr;

/* What a function is asked about. Attributes are in the order of the declaration. Results have types and no data; there
 * are none where their types are asked for. */
typedef struct {
    const OfAttr *attrs;
    size_t attr_count;
    const OfTensor *operands;
    size_t operand_count;
    const OfTensor *results;
    size_t result_count;
} OfCall;

enum { OF_THREADS = 0, OF_BLOCKS = 1 };
/* How often a kernel's text runs: by a thread for each number i below count, or by a block of 256 threads for each
 * number block below it. */
typedef struct { uint32_t unit; uint64_t count; } OfLaunch;

typedef struct {
    const char *name;           /* "namespace.name"; not of.name */
    const char *doc;            /* the first line is what lists show; may be null */
    const char *onnx;           /* "domain::Name", or null */
    const OfSlot *operands;
    size_t operand_count;
    const OfSlot *results;
    size_t result_count;
    const OfAttrSlot *attrs;
    size_t attr_count;
    /* Gives the type of every result (the memory that give returns is none then, but not null), or refuses. */
    int32_t (*infer)(const OfCall *call, OfResults results, OfSink error);
    /* The CPU kernel: gives every result and writes its elements. */
    int32_t (*compute)(const OfCall *call, OfResults results, OfSink error);
    /* Legal layouts on an axis of a mesh, one a line: "S(0), B -> P(sum)"; " / 8" behind it where the number of devices
     * must divide 8. May be null: whole on every device. */
    int32_t (*sbp)(const OfCall *call, OfSink out);
    /* Statements in CUDA C++ for operands and results whose extents are numbers. Operands and results are pointers under
     * their names (of a variadic operand x: x0, x1, ...). Types and functions are those of codegen/src/print/cuda/prelude.cuh. May be
     * null: it does not run on GPUs. */
    int32_t (*cuda)(const OfCall *call, OfLaunch *launch, OfSink out);
} OfOp;

/* OF_OPS_VERSION, sizeof(OfOp). */
typedef struct { uint32_t version, size; const OfOp *ops; size_t count; } OfOps;

const OfOps *of_ops(void);

/* ---- backends ---- */

#define OF_BACKEND_VERSION 1

typedef struct {
    uint32_t version, size;     /* OF_BACKEND_VERSION, sizeof(OfBackend) */
    const char *name;           /* of letters, digits, - and _ */
    uint64_t largest_constant;  /* constants of up to so many elements are part of functions; larger ones are inputs */
    double launch;              /* seconds of a call */
    double bandwidth;           /* bytes a second into and out of its memory; infinite where it shares the host's */
    /* Whether it runs the op of a function (IR text: the op, its constants before it); else why not. */
    int32_t (*claims)(OfBytes function, OfSink reason);
    /* A function of claimed ops as IR text, with shapes, placements and constants, to an artifact that the plan keeps. */
    int32_t (*compile)(OfBytes function, OfSink artifact);
    int32_t (*load)(OfBytes artifact, void **executable, OfSink error);
    int32_t (*run)(void *executable, const OfTensor *inputs, size_t count, OfResults results, OfSink error);
    void (*unload)(void *executable);
} OfBackend;

const OfBackend *of_backend(void);

#endif
