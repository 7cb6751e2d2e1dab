/* Runs plans, which `of-opt compile MODEL.onnx -o MODEL.plan` makes.
 *
 * A plan is opened once and gives any number of sessions. A session has its own memory and threads: use one for each thread that
 * runs. Calls into one session from two threads at a time are refused with OF_BUSY, of_session_cancel excepted. A plan may be
 * used by any number of threads, and freed before its sessions.
 *
 * Every function that returns an of_status returns OF_OK or the kind of the error; of_error_text then says what is wrong. Null
 * pointers and wrong indices, sizes and types are errors. No function ends the process or throws.
 *
 * Link libof_runtime.so (-lof_runtime) or libof_runtime.a (-lof_runtime -lpthread -ldl -lm). */
#ifndef OF_RUNTIME_H
#define OF_RUNTIME_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this interface. A library works if of_runtime_abi_version() returns the same number. */
#define OF_RUNTIME_ABI_VERSION 1
uint32_t of_runtime_abi_version(void);

/* The version of the library, such as "0.1.0". */
const char *of_runtime_version(void);

typedef uint32_t of_status;
enum {
    OF_OK = 0,
    OF_INVALID_ARGUMENT = 1, /* a null pointer, an unknown index or type, a wrong size */
    OF_IO = 2,               /* a file cannot be read */
    OF_PLAN = 3,             /* a plan is damaged, of another version, or does not verify */
    OF_UNSUPPORTED = 4,      /* this machine or this interface cannot do it */
    OF_INPUT = 5,            /* a value does not fit the plan */
    OF_MEMORY = 6,           /* the memory budget or the system's memory is exhausted */
    OF_RUN = 7,              /* a task failed */
    OF_CANCELLED = 8,        /* of_session_cancel ended the run */
    OF_BUSY = 9,             /* another thread uses the session */
    OF_BUFFER = 10,          /* a result does not fit into the caller's buffer */
    OF_INTERNAL = 11,        /* a bug of the library */
    OF_SIGNATURE = 12        /* the signature of a plan is refused */
};

/* What was wrong in the last call of this thread that failed, as one sentence; "" if none failed. Valid until the next call
 * of this thread that fails. */
const char *of_error_text(void);

/* Element types, numbered as in the plan's format. Types below 8 bits are packed, the first element in the lowest bits. */
enum {
    OF_TYPE_NONE = 0, /* no tensor: a sequence or an optional value, which an of_value holds */
    OF_TYPE_F64 = 1,
    OF_TYPE_F32 = 2,
    OF_TYPE_F16 = 3,
    OF_TYPE_BF16 = 4,
    OF_TYPE_F8E4M3FN = 5,
    OF_TYPE_F8E4M3FNUZ = 6,
    OF_TYPE_F8E5M2 = 7,
    OF_TYPE_F8E5M2FNUZ = 8,
    OF_TYPE_I4 = 9,
    OF_TYPE_I8 = 10,
    OF_TYPE_I16 = 11,
    OF_TYPE_I32 = 12,
    OF_TYPE_I64 = 13,
    OF_TYPE_UI4 = 14,
    OF_TYPE_UI8 = 15,
    OF_TYPE_UI16 = 16,
    OF_TYPE_UI32 = 17,
    OF_TYPE_UI64 = 18,
    OF_TYPE_I1 = 19,     /* bool: one byte, 0 or 1 */
    OF_TYPE_STRING = 20, /* text: of_session_set_input_text and of_session_output_text */
    OF_TYPE_F8E8M0FNU = 21,
    OF_TYPE_F4E2M1FN = 22,
    OF_TYPE_I2 = 23,
    OF_TYPE_UI2 = 24
};

/* A row-major tensor. `rank` extents are in `dims`; `bytes` is the size of `data`. */
typedef struct of_tensor {
    uint32_t dtype;
    uint32_t rank;
    const int64_t *dims;
    void *data;
    size_t bytes;
} of_tensor;

/* An input, output or variable. It lives as long as its plan. */
typedef struct of_port {
    const char *name;
    uint32_t dtype;
    int32_t rank;                 /* -1: any rank */
    const int64_t *dims;          /* -1: an open extent, which a run determines */
    const char *const *dim_names; /* what the plan calls each open extent, such as "N" or "2*N + 1"; null for a number, "" without name */
    const char *type_text;        /* the type for people: "f32[N, 3, 224, 224]" */
} of_port;

/* ---- plans ---- */

typedef struct of_plan of_plan;

/* Opens a plan: a file, which is mapped, or bytes, which are copied. Checksums and structure are verified. */
of_status of_plan_open(const char *path, of_plan **plan);
of_status of_plan_open_memory(const void *bytes, size_t len, of_plan **plan);

/* Opens a plan only if the holder of a key signed it (`of-opt sign`). The file is read into memory, and the signature is checked before
 * anything of the plan is decoded. `key` is a file with a public key in PEM. `signature` is a file; null is PATH.sig. A key that cannot be
 * used is OF_INVALID_ARGUMENT, a missing file OF_IO. A library built without the feature `signature` gives OF_UNSUPPORTED. */
of_status of_plan_open_signed(const char *path, const char *signature, const char *key, of_plan **plan);

/* Frees a plan; null is ignored. Its sessions stay valid. */
void of_plan_free(of_plan *plan);

/* The number of programs, one for each set of fixed shapes (`--variant`); most plans have one. Those of a plan for a mesh are what its ranks
 * run together. */
of_status of_plan_program_count(const of_plan *plan, size_t *count);

/* Inputs and outputs of a program. */
of_status of_plan_input_count(const of_plan *plan, size_t program, size_t *count);
of_status of_plan_output_count(const of_plan *plan, size_t program, size_t *count);
of_status of_plan_input(const of_plan *plan, size_t program, size_t index, of_port *port);
of_status of_plan_output(const of_plan *plan, size_t program, size_t index, of_port *port);

/* Variables of a program: values that its sessions keep between runs (`of-opt compile --variable`). Their extents are numbers. */
of_status of_plan_variable_count(const of_plan *plan, size_t program, size_t *count);
of_status of_plan_variable(const of_plan *plan, size_t program, size_t index, of_port *port);

/* The program that accepts inputs of these types and extents; their data is not read. OF_TYPE_NONE is a sequence or an optional value. */
of_status of_plan_find_program(const of_plan *plan, const of_tensor *inputs, size_t count, size_t *program);

/* ---- sessions ---- */

typedef struct of_session of_session;

typedef struct of_session_options {
    size_t program;  /* which program of the plan, also of ranks */
    uint32_t threads; /* workers, the calling thread included; 0: as many as the plan was compiled for */
    uint64_t memory; /* the most bytes that values may take; 0: this machine's memory */
} of_session_options;

/* Makes a session; null options are zeros. It verifies that the program cannot deadlock and that its memory is sound. */
of_status of_session_new(const of_plan *plan, const of_session_options *options, of_session **session);

/* How the ranks of a plan for a mesh are started as processes. */
typedef struct of_rank_options {
    uint32_t ranks;        /* as many as the plan's mesh has */
    const char *program;   /* what starts a rank, and calls of_serve_rank first; null: the program of this process */
    uint32_t join_timeout; /* how long ranks wait for one another in the beginning, in milliseconds; 0: a minute */
    uint32_t peer_timeout; /* after how many milliseconds a silent rank counts as lost; 0: 10 s */
    uint32_t tls;          /* 1: encrypt connections over TCP, with a key that follows from the job's token */
} of_rank_options;

/* Makes a session whose ranks are processes: this one, and others that it starts and that end with the session. Inputs, outputs and
 * variables are whole, as in one process. Where mpirun, srun or torchrun started this program once for each rank, the processes join one
 * another instead, and all of them make the same calls in the same order; the environment variable OF_JOB_TOKEN is then the token for
 * `tls`. The memory of an output is written after the run. After a rank is lost, every run gives OF_RUN. A library built without the
 * feature `ranks` gives OF_UNSUPPORTED. */
of_status of_session_new_ranks(const of_plan *plan, const of_session_options *options, const of_rank_options *ranks,
                               of_session **session);

/* In a process that of_session_new_ranks started: serves its rank until the session ends, and sets `served` to 1; the process should
 * end then. In any other process it sets 0. A program that is its own `program` calls this first in main. */
of_status of_serve_rank(int32_t *served);

/* Frees a session; null is ignored. No other thread may use it. */
void of_session_free(of_session *session);

/* Sets an input. The session reads `data` in every run until another tensor is set, so its elements may change between runs;
 * an input with open extents is read in place. `data` is aligned to its element type, and overlaps no output. Type and extents are
 * copied. */
of_status of_session_set_input(of_session *session, size_t index, const of_tensor *tensor);

/* Sets an input of text: UTF-8, copied. Lengths in bytes, or null for strings that end with zero. */
of_status of_session_set_input_text(of_session *session, size_t index, uint32_t rank, const int64_t *dims, const char *const *text,
                                    const size_t *lengths);

/* The memory that runs write an output to; null: memory of the session. A result of fixed extents must have exactly `bytes` bytes. One
 * of open extents may be smaller; if it is larger, the run gives OF_BUFFER, and the result is in the session's memory. */
of_status of_session_set_output(of_session *session, size_t index, void *data, size_t bytes);

/* Runs the program on the inputs that are set. */
of_status of_session_run(of_session *session);

/* The type, extents and memory of an output of the last run: the caller's memory, or else that of the session. Valid until the
 * next run, of_session_set_output, or of_session_free. Text has no `data`. */
of_status of_session_output(of_session *session, size_t index, of_tensor *tensor);

/* A string of an output of text: UTF-8 without a zero at its end. Valid as of_session_output. */
of_status of_session_output_text(of_session *session, size_t index, size_t element, const char **text, size_t *length);

/* With 1, a run in progress ends with OF_CANCELLED before its next task, and so does every later run until 0 is set. May be
 * called from any thread, not from a signal handler. Ranks that are processes end, so their session does not run again, also after 0. */
of_status of_session_cancel(of_session *session, int32_t cancelled);

/* ---- sequences and optional values ---- */

/* A tensor, a sequence of values, or a value that may be absent. It is not changed after it was made, so any number of threads may
 * use it. They nest at most 32 levels deep. */
typedef struct of_value of_value;
enum {
    OF_VALUE_TENSOR = 0,
    OF_VALUE_SEQUENCE = 1,
    OF_VALUE_OPTIONAL = 2
};

/* Makes a value. What it holds is copied, and whoever makes it frees it. An optional value of a null item is absent. */
of_status of_value_new_tensor(const of_tensor *tensor, of_value **value);
of_status of_value_new_text(uint32_t rank, const int64_t *dims, const char *const *text, const size_t *lengths, of_value **value);
of_status of_value_new_sequence(const of_value *const *items, size_t count, of_value **value);
of_status of_value_new_optional(const of_value *item, of_value **value);

/* Frees a value that of_value_new_... made; null is ignored. */
void of_value_free(of_value *value);

/* What a value is: OF_VALUE_TENSOR, OF_VALUE_SEQUENCE or OF_VALUE_OPTIONAL. */
of_status of_value_kind(const of_value *value, uint32_t *kind);

/* How many items it has. A tensor has none; an optional value has one, or none if it is absent. */
of_status of_value_count(const of_value *value, size_t *count);

/* An item, which is valid as long as the whole. It is not freed. */
of_status of_value_item(const of_value *value, size_t index, const of_value **found);

/* The type, extents and memory of a tensor, or a string of it. Valid as long as the value. Nothing may write to the memory. */
of_status of_value_tensor(const of_value *value, of_tensor *tensor);
of_status of_value_text(const of_value *value, size_t element, const char **text, size_t *length);

/* Sets an input to a copy of a value. */
of_status of_session_set_input_value(of_session *session, size_t index, const of_value *value);

/* An output of the last run. Valid as of_session_output. It is not freed. */
of_status of_session_output_value(of_session *session, size_t index, const of_value **value);

/* ---- variables ---- */

/* As of_session_new, with the variables of another session of the same plan, which both then use. A run of one waits for that of the
 * other, and so do the functions below. Programs with other variables are OF_PLAN. */
of_status of_session_new_sharing(const of_plan *plan, const of_session_options *options, const of_session *other, of_session **session);

/* Copies the value of a variable, which has exactly `bytes` bytes. OF_INPUT if it has no value yet, or lost it, because a run failed
 * while it updated the variables. */
of_status of_session_get_variable(const of_session *session, size_t index, void *data, size_t bytes);

/* Sets the value of a variable: a tensor of its type and extents, which is copied. */
of_status of_session_set_variable(const of_session *session, size_t index, const of_tensor *tensor);

/* Gives every variable its value in a new session; those without one have none afterwards. */
of_status of_session_reset_variables(const of_session *session);

#ifdef __cplusplus
}
#endif
#endif
