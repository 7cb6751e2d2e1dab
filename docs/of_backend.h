/* A backend in a shared library: what of-opt --backend-library loads.
 *
 * The library exports of_backend. Every function gives 0 where it did what it is for; else it has written one sentence
 * to the sink. Functions may be called from any thread; an executable is called by one thread at a time. Nothing that one
 * side allocates is freed by the other. Versions that differ are refused. */
#ifndef OF_BACKEND_H
#define OF_BACKEND_H

#include <stddef.h>
#include <stdint.h>

#define OF_BACKEND_VERSION 1

/* Bytes that the caller owns for the time of the call. */
typedef struct { const uint8_t *data; size_t len; } OfBytes;

/* Where text or bytes are written: any number of calls, the parts follow one another. */
typedef struct { void *context; void (*write)(void *context, const uint8_t *data, size_t len); } OfSink;

/* Row-major elements. Element types are numbered as in the plan's format: 1 f64, 2 f32, 3 f16, 4 bf16, 10 i8, 11 i16,
 * 12 i32, 13 i64 ... (plan/src/dtype.rs has all of them). */
typedef struct { uint32_t dtype, rank; const int64_t *dims; const uint8_t *data; size_t len; } OfTensor;

/* Memory for the results: give(context, index, dtype, dims, rank) is where result `index` goes, null if it does not fit. */
typedef struct {
    void *context;
    uint8_t *(*give)(void *context, size_t index, uint32_t dtype, const int64_t *dims, uint32_t rank);
    size_t count;
} OfResults;

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
