/* Ops and backends in a shared library, which of-opt --library loads.
 *
 * The library exports of_ops, of_backend, or both. Every function returns 0 on success. On failure it writes one sentence to the
 * sink and returns another value. Functions may be called from any thread; one thread at a time calls an executable. Memory is
 * freed by the side that allocated it. Different versions are refused. */
#ifndef OF_LIBRARY_H
#define OF_LIBRARY_H

#include <stddef.h>
#include <stdint.h>

/* Bytes, owned by the caller and valid during the call. */
typedef struct { const uint8_t *data; size_t len; } OfBytes;

/* A sink for text or bytes. Each call appends. */
typedef struct { void *context; void (*write)(void *context, const uint8_t *data, size_t len); } OfSink;

/* Element types, numbered as in the plan's format (plan/src/dtype.rs has all of them); 0 is an absent operand. */
enum { OF_F64 = 1, OF_F32 = 2, OF_F16 = 3, OF_BF16 = 4, OF_I8 = 10, OF_I16 = 11, OF_I32 = 12, OF_I64 = 13,
       OF_U8 = 15, OF_U16 = 16, OF_U32 = 17, OF_U64 = 18, OF_BOOL = 19 };

/* A row-major tensor. During type inference data is null unless the tensor is a constant, and rank may be OF_NO_RANK. Symbolic
 * extents are negative there: equal symbols have equal numbers, which a result may repeat. OF_UNKNOWN is an extent of which
 * nothing is known. */
typedef struct { uint32_t dtype, rank; const int64_t *dims; const uint8_t *data; size_t len; } OfTensor;
#define OF_NO_RANK UINT32_MAX
#define OF_UNKNOWN INT64_MIN

/* Memory for the results: allocate(context, index, dtype, dims, rank) returns the memory of result `index`, or null if type or shape do
 * not match. */
typedef struct {
    void *context;
    uint8_t *(*allocate)(void *context, size_t index, uint32_t dtype, const int64_t *dims, uint32_t rank);
    size_t count;
} OfResults;

/* ---- ops ---- */

#define OF_OPS_VERSION 1

enum { OF_ONE = 0, OF_OPTIONAL = 1, OF_VARIADIC = 2 };
/* An operand or result; results are OF_ONE. */
typedef struct { const char *name; uint32_t arity; } OfSlot;

enum { OF_ATTR_ABSENT = 0, OF_ATTR_BOOL = 1, OF_INTEGER = 2, OF_FLOAT = 3, OF_STRING = 4, OF_INTEGERS = 5, OF_FLOATS = 6 };
typedef struct { const char *name; uint32_t kind, optional; } OfAttrSlot;
/* An attribute's value: bool and integer in `integer`, float in `number`; otherwise `list` has `count` characters, int64_t or double. */
typedef struct { uint32_t kind; int64_t integer; double number; const void *list; size_t count; } OfAttr;

/* One use of an op. Attributes are in the order of the declaration. Results have types and no data; during type inference there are
 * no results. */
typedef struct {
    const OfAttr *attrs;
    size_t attr_count;
    const OfTensor *operands;
    size_t operand_count;
    const OfTensor *results;
    size_t result_count;
} OfCall;

enum { OF_THREADS = 0, OF_BLOCKS = 1 };
/* The launch of a kernel: one thread for each i < count, or one block of 256 threads for each block < count. */
typedef struct { uint32_t unit; uint64_t count; } OfLaunch;

typedef struct {
    const char *name;           /* "namespace.name"; not of.name */
    const char *doc;            /* the first line is the summary in lists; may be null */
    const char *onnx;           /* "domain::Name", or null */
    const OfSlot *operands;
    size_t operand_count;
    const OfSlot *results;
    size_t result_count;
    const OfAttrSlot *attrs;
    size_t attr_count;
    /* Infers the type of every result through allocate (which returns no usable memory then, but not null), or refuses. */
    int32_t (*infer)(const OfCall *call, OfResults results, OfSink error);
    /* The CPU kernel: asks allocate for the memory of every result and writes its elements. */
    int32_t (*compute)(const OfCall *call, OfResults results, OfSink error);
    /* SBP signatures for one mesh axis, one a line: "S(0), B -> P(sum)"; a suffix " / 8" if the number of devices must divide 8. May
     * be null: broadcast only. */
    int32_t (*sbp)(const OfCall *call, OfSink out);
    /* Statements in CUDA C++ for operands and results of fixed extents. Operands and results are pointers under their names (a
     * variadic operand x: x0, x1, ...). codegen/src/print/cuda/prelude.cuh defines types and functions. May be null: no GPU kernel. */
    int32_t (*cuda)(const OfCall *call, OfLaunch *launch, OfSink out);
    /* The name of the op of this library that computes the gradients. Its operands are the operands, the results, and the gradients
     * of the results; its results have the names of the operands whose gradients they are; it gets the attributes that it declares.
     * May be null: not differentiable. Libraries that were built without this field still load. */
    const char *gradient;
} OfOp;

/* OF_OPS_VERSION, sizeof(OfOp). */
typedef struct { uint32_t version, size; const OfOp *ops; size_t count; } OfOps;

const OfOps *of_ops(void);

/* ---- backends ---- */

#define OF_BACKEND_VERSION 1

typedef struct {
    uint32_t version, size;     /* OF_BACKEND_VERSION, sizeof(OfBackend) */
    const char *name;           /* of letters, digits, - and _ */
    uint64_t largest_constant;  /* constants of up to this many elements are part of functions; larger ones are inputs */
    double launch;              /* seconds of a call */
    double bandwidth;           /* bytes per second into and out of its memory; infinite where it shares the host's */
    /* Claims the op of a function (IR text: the op behind its constants), or writes the reason why not. */
    int32_t (*claims)(OfBytes function, OfSink reason);
    /* Compiles a function of claimed ops (IR text with shapes, placements and constants) to an artifact, which the plan stores. */
    int32_t (*compile)(OfBytes function, OfSink artifact);
    int32_t (*load)(OfBytes artifact, void **executable, OfSink error);
    int32_t (*run)(void *executable, const OfTensor *inputs, size_t count, OfResults results, OfSink error);
    void (*unload)(void *executable);
} OfBackend;

const OfBackend *of_backend(void);

#endif
