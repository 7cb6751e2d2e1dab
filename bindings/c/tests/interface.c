/* Calls of every kind, right and wrong: interface FOLDER, which has the plans of programs.rs. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "of_runtime.h"

#define EXPECT(condition)                                                                                   \
    do {                                                                                                    \
        if (!(condition)) {                                                                                 \
            fprintf(stderr, "%s:%d: %s (%s)\n", __FILE__, __LINE__, #condition, of_error_text());           \
            exit(1);                                                                                        \
        }                                                                                                   \
    } while (0)
/* A call that fails in this way, with a text that holds these words. */
#define FAILS(status, words, call) EXPECT((call) == (status) && strstr(of_error_text(), words))
#define WORKS(call) EXPECT((call) == OF_OK)

static const char *folder;

static of_plan *plan_of(const char *name) {
    char path[4096];
    of_plan *plan = NULL;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    WORKS(of_plan_open(path, &plan));
    return plan;
}

static of_session *session_of(const char *name) {
    of_plan *plan = plan_of(name);
    of_session *session = NULL;
    WORKS(of_session_new(plan, NULL, &session));
    of_plan_free(plan);
    return session;
}

static of_tensor f32(const int64_t *dims, float *data, size_t rows) {
    of_tensor tensor = {OF_TYPE_F32, 2, dims, data, rows * 4 * sizeof(float)};
    return tensor;
}

static void plans(void) {
    of_plan *plan = NULL, *other = NULL;
    size_t count = 0;
    of_port port;
    EXPECT(of_runtime_abi_version() == OF_RUNTIME_ABI_VERSION && strlen(of_runtime_version()) > 2);
    EXPECT(strcmp(of_error_text(), "") == 0);
    FAILS(OF_INVALID_ARGUMENT, "`path` is null", of_plan_open(NULL, &plan));
    FAILS(OF_INVALID_ARGUMENT, "`plan` is null", of_plan_open("x", NULL));
    FAILS(OF_IO, "no.plan", of_plan_open("no.plan", &plan));
    FAILS(OF_PLAN, "not a plan", of_plan_open_memory("nothing", 7, &plan));
    FAILS(OF_PLAN, "not a plan", of_plan_open_memory(NULL, 0, &plan));
    FAILS(OF_INVALID_ARGUMENT, "`bytes` is null", of_plan_open_memory(NULL, 7, &plan));
    FAILS(OF_INVALID_ARGUMENT, "cannot have", of_plan_open_memory("x", SIZE_MAX, &plan));
    EXPECT(plan == NULL);
    FAILS(OF_INVALID_ARGUMENT, "`plan` is null", of_plan_program_count(NULL, &count));
    of_plan_free(NULL);

    plan = plan_of("digits.plan");
    FAILS(OF_INVALID_ARGUMENT, "`count` is null", of_plan_program_count(plan, NULL));
    WORKS(of_plan_program_count(plan, &count));
    EXPECT(count == 1);
    WORKS(of_plan_input_count(plan, 0, &count));
    EXPECT(count == 1);
    WORKS(of_plan_output_count(plan, 0, &count));
    EXPECT(count == 1);
    FAILS(OF_INVALID_ARGUMENT, "no program number 1; there are 1", of_plan_input_count(plan, 1, &count));
    FAILS(OF_INVALID_ARGUMENT, "no input number 1", of_plan_input(plan, 0, 1, &port));
    FAILS(OF_INVALID_ARGUMENT, "no output number 7", of_plan_output(plan, 0, 7, &port));
    FAILS(OF_INVALID_ARGUMENT, "`port` is null", of_plan_output(plan, 0, 0, NULL));
    WORKS(of_plan_input(plan, 0, 0, &port));
    EXPECT(strcmp(port.name, "image") == 0 && port.dtype == OF_TYPE_F32 && port.rank == 4);
    EXPECT(port.dims[0] == -1 && port.dims[1] == 1 && port.dims[2] == 8 && port.dims[3] == 8);
    EXPECT(strcmp(port.dim_names[0], "N") == 0 && port.dim_names[1] == NULL);
    EXPECT(strcmp(port.type_text, "f32[N, 1, 8, 8]") == 0);

    const int64_t dims[] = {3, 1, 8, 8};
    of_tensor image = {OF_TYPE_F32, 4, dims, NULL, 0};
    WORKS(of_plan_find_program(plan, &image, 1, &count));
    EXPECT(count == 0);
    FAILS(OF_INPUT, "inputs were given", of_plan_find_program(plan, NULL, 0, &count));
    image.dtype = OF_TYPE_F64;
    FAILS(OF_INPUT, "f64", of_plan_find_program(plan, &image, 1, &count));
    image.dtype = 99;
    FAILS(OF_INVALID_ARGUMENT, "number 99", of_plan_find_program(plan, &image, 1, &count));

    /* The same plan from memory. */
    char path[4096];
    snprintf(path, sizeof path, "%s/digits.plan", folder);
    FILE *file = fopen(path, "rb");
    static char bytes[4 << 20];
    size_t len = fread(bytes, 1, sizeof bytes, file);
    fclose(file);
    WORKS(of_plan_open_memory(bytes, len, &other));
    bytes[len - 1] ^= 1;
    of_plan *damaged = NULL;
    FAILS(OF_PLAN, "damaged", of_plan_open_memory(bytes, len, &damaged));
    memset(bytes, 0, sizeof bytes);
    WORKS(of_plan_input(other, 0, 0, &port));
    EXPECT(strcmp(port.name, "image") == 0);
    of_plan_free(other);
    of_plan_free(plan);
}

static void options(void) {
    of_plan *plan = plan_of("digits.plan"), *interpreted = plan_of("interpreted.plan");
    of_session *session = NULL;
    of_session_options choice = {0, 2, 0};
    FAILS(OF_INVALID_ARGUMENT, "`plan` is null", of_session_new(NULL, NULL, &session));
    FAILS(OF_INVALID_ARGUMENT, "`session` is null", of_session_new(plan, NULL, NULL));
    choice.program = 5;
    FAILS(OF_INVALID_ARGUMENT, "no program number 5", of_session_new(plan, &choice, &session));
    choice.program = 0;
    choice.memory = 1;
    FAILS(OF_MEMORY, "the budget is 1 B", of_session_new(plan_of("fixed.plan"), &choice, &session));
    FAILS(OF_UNSUPPORTED, "--require-native", of_session_new(interpreted, NULL, &session));
    FAILS(OF_UNSUPPORTED, "task det (test.of:2:8) has no native code: it needs the backend `reference`", of_session_new(interpreted, NULL, &session));
    EXPECT(session == NULL);
    choice.memory = 0;
    WORKS(of_session_new(plan, &choice, &session));
    of_session_free(session);
    of_session_free(NULL);
    of_plan_free(interpreted);
    of_plan_free(plan);
}

static void values(void) {
    of_session *session = session_of("rows.plan");
    float x[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, y[12] = {0};
    const int64_t two[] = {2, 4}, three[] = {3, 4}, negative[] = {-1, 4};
    of_tensor tensor = f32(two, x, 2), result;

    FAILS(OF_INPUT, "input `x` (number 0) is not set; it is f32[N, 4]", of_session_run(session));
    FAILS(OF_INVALID_ARGUMENT, "has not run", of_session_output(session, 0, &result));
    FAILS(OF_INVALID_ARGUMENT, "`session` is null", of_session_run(NULL));
    FAILS(OF_INVALID_ARGUMENT, "`tensor` is null", of_session_set_input(session, 0, NULL));
    FAILS(OF_INVALID_ARGUMENT, "no input number 4", of_session_set_input(session, 4, &tensor));
    tensor.bytes -= 1;
    FAILS(OF_INVALID_ARGUMENT, "holds 32 bytes, not 31", of_session_set_input(session, 0, &tensor));
    tensor.bytes += 1;
    tensor.dims = negative;
    FAILS(OF_INVALID_ARGUMENT, "cannot have", of_session_set_input(session, 0, &tensor));
    tensor.dims = NULL;
    FAILS(OF_INVALID_ARGUMENT, "`dims` is null", of_session_set_input(session, 0, &tensor));
    tensor.dims = two;
    tensor.data = NULL;
    FAILS(OF_INVALID_ARGUMENT, "`data` is null", of_session_set_input(session, 0, &tensor));
    tensor.data = (char *)x + 1;
    FAILS(OF_INVALID_ARGUMENT, "not aligned to 4 bytes", of_session_set_input(session, 0, &tensor));
    tensor.data = x;
    tensor.rank = 1;
    tensor.bytes = 8;
    FAILS(OF_INPUT, "rank", of_session_set_input(session, 0, &tensor));
    tensor.dtype = OF_TYPE_I32;
    tensor.rank = 2;
    tensor.bytes = 32;
    FAILS(OF_INPUT, "element type i32", of_session_set_input(session, 0, &tensor));
    tensor.dtype = OF_TYPE_STRING;
    FAILS(OF_INVALID_ARGUMENT, "of_session_set_input_text", of_session_set_input(session, 0, &tensor));
    FAILS(OF_INVALID_ARGUMENT, "no output number 9", of_session_set_output(session, 9, y, sizeof y));

    /* Memory of the session, then memory of the caller; elements may change between runs. */
    tensor = f32(two, x, 2);
    WORKS(of_session_set_input(session, 0, &tensor));
    WORKS(of_session_run(session));
    FAILS(OF_INVALID_ARGUMENT, "no output number 2", of_session_output(session, 2, &result));
    FAILS(OF_INVALID_ARGUMENT, "`tensor` is null", of_session_output(session, 0, NULL));
    WORKS(of_session_output(session, 0, &result));
    EXPECT(result.rank == 2 && result.dims[0] == 2 && result.dims[1] == 4 && result.bytes == 32);
    EXPECT(((float *)result.data)[7] == 16 && result.data != (void *)y);
    x[7] = 80;
    WORKS(of_session_set_output(session, 0, y, sizeof y));
    FAILS(OF_INVALID_ARGUMENT, "has not run", of_session_output(session, 0, &result));
    WORKS(of_session_run(session));
    WORKS(of_session_output(session, 0, &result));
    EXPECT(result.data == (void *)y && result.bytes == 32 && y[7] == 160 && y[8] == 0);
    /* A result that is an input is a copy: the caller may free the input. */
    WORKS(of_session_output(session, 1, &result));
    EXPECT(result.data != (void *)x && ((float *)result.data)[7] == 80);

    /* A buffer that is too small: the result is in the session's memory. */
    float small[8] = {0};
    WORKS(of_session_set_output(session, 0, small, sizeof small));
    tensor = f32(three, x, 3);
    WORKS(of_session_set_input(session, 0, &tensor));
    FAILS(OF_BUFFER, "has 48 bytes, and its buffer 32", of_session_run(session));
    WORKS(of_session_output(session, 0, &result));
    EXPECT(result.data != (void *)small && result.bytes == 48 && ((float *)result.data)[11] == 24 && small[0] == 0);
    WORKS(of_session_set_output(session, 0, NULL, 0));
    WORKS(of_session_run(session));
    const char *text;
    size_t length;
    FAILS(OF_INVALID_ARGUMENT, "is not text", of_session_output_text(session, 0, 0, &text, &length));

    /* No rows. */
    const int64_t none[] = {0, 4};
    of_tensor empty = {OF_TYPE_F32, 2, none, NULL, 0};
    WORKS(of_session_set_input(session, 0, &empty));
    WORKS(of_session_run(session));
    WORKS(of_session_output(session, 0, &result));
    EXPECT(result.dims[0] == 0 && result.bytes == 0);
    of_session_free(session);
}

static void fixed_values(void) {
    of_session *session = session_of("fixed.plan");
    float x[12] = {3, [11] = 4}, y[13] = {0};
    const int64_t three[] = {3, 4};
    of_tensor tensor = f32(three, x, 3), result;
    WORKS(of_session_set_input(session, 0, &tensor));
    FAILS(OF_INVALID_ARGUMENT, "holds 48 bytes, not 52", of_session_set_output(session, 0, y, sizeof y));
    WORKS(of_session_set_output(session, 0, y, 48));
    for (int i = 0; i < 3; ++i) {
        x[0] = (float)i;
        WORKS(of_session_run(session));
        EXPECT(y[0] == 2 * x[0] && y[11] == 8 && y[12] == 0);
    }
    WORKS(of_session_output(session, 0, &result));
    EXPECT(result.data == (void *)y);
    of_session_free(session);
}

static void text(void) {
    of_session *session = session_of("text.plan");
    const char *strings[] = {"one", "two \xC3\xA9", "a\0b"}, *found;
    const size_t lengths[] = {3, 6, 3};
    const int64_t dims[] = {3};
    const char *wrong[] = {"\xFF"};
    size_t length;
    of_tensor result;
    FAILS(OF_INVALID_ARGUMENT, "`strings` is null", of_session_set_input_text(session, 0, 1, dims, NULL, NULL));
    const int64_t one[] = {1};
    FAILS(OF_INVALID_ARGUMENT, "not UTF-8", of_session_set_input_text(session, 0, 1, one, wrong, NULL));
    WORKS(of_session_set_input_text(session, 0, 1, dims, strings, lengths));
    WORKS(of_session_run(session));
    WORKS(of_session_output(session, 0, &result));
    EXPECT(result.dtype == OF_TYPE_STRING && result.rank == 1 && result.dims[0] == 3 && result.data == NULL);
    WORKS(of_session_output_text(session, 0, 2, &found, &length));
    EXPECT(length == 3 && memcmp(found, "a\0b", 3) == 0);
    FAILS(OF_INVALID_ARGUMENT, "no string number 3", of_session_output_text(session, 0, 3, &found, &length));
    FAILS(OF_UNSUPPORTED, "has no bytes", of_session_set_output(session, 0, (void *)dims, 8));
    WORKS(of_session_set_input_text(session, 0, 1, dims, strings, NULL));
    WORKS(of_session_run(session));
    WORKS(of_session_output_text(session, 0, 1, &found, &length));
    EXPECT(length == 6 && memcmp(found, strings[1], 6) == 0);
    of_session_free(session);
}

/* A sequence and an optional value, which come out as they went in, and an element of another one. */
static void sequences(void) {
    of_session *session = session_of("sequence.plan");
    of_plan *plan = plan_of("sequence.plan");
    float x[] = {1, 2, 3};
    const int64_t three[] = {3}, one[] = {1};
    const char *strings[] = {"one"}, *found_text;
    of_tensor tensor = {OF_TYPE_F32, 1, three, x, sizeof x}, result;
    of_value *item = NULL, *text = NULL, *sequence = NULL, *absent = NULL, *present = NULL, *none = NULL;
    const of_value *found = NULL, *inner = NULL;
    uint32_t kind = 9;
    size_t count = 9, length;
    of_port port;

    WORKS(of_plan_input(plan, 0, 0, &port));
    EXPECT(port.dtype == OF_TYPE_NONE && strcmp(port.type_text, "object") == 0);
    const of_tensor given[] = {{OF_TYPE_NONE, 0, NULL, NULL, 0}, {OF_TYPE_NONE, 0, NULL, NULL, 0}};
    WORKS(of_plan_find_program(plan, given, 2, &count));
    EXPECT(count == 0);

    /* What a value holds is a copy. */
    WORKS(of_value_new_tensor(&tensor, &item));
    x[2] = 30;
    tensor.dims = one;
    tensor.bytes = 4;
    WORKS(of_value_new_text(1, one, strings, NULL, &text));
    const of_value *items[] = {item, item, item};
    WORKS(of_value_new_sequence(items, 3, &sequence));
    WORKS(of_value_new_optional(NULL, &absent));
    WORKS(of_value_new_optional(item, &present));
    of_value_free(item);
    of_value_free(NULL);
    WORKS(of_value_kind(absent, &kind));
    EXPECT(kind == OF_VALUE_OPTIONAL);
    WORKS(of_value_count(absent, &count));
    EXPECT(count == 0);
    WORKS(of_value_count(present, &count));
    EXPECT(count == 1);
    WORKS(of_value_text(text, 0, &found_text, &length));
    EXPECT(length == 3 && memcmp(found_text, "one", 3) == 0);

    FAILS(OF_INPUT, "input `s` (number 0) is not set; it is object", of_session_run(session));
    WORKS(of_session_set_input_value(session, 0, sequence));
    WORKS(of_session_set_input_value(session, 1, absent));
    WORKS(of_session_run(session));
    WORKS(of_session_output_value(session, 0, &found));
    WORKS(of_value_kind(found, &kind));
    WORKS(of_value_count(found, &count));
    EXPECT(kind == OF_VALUE_SEQUENCE && count == 3);
    WORKS(of_value_item(found, 2, &inner));
    WORKS(of_value_kind(inner, &kind));
    EXPECT(kind == OF_VALUE_TENSOR);
    WORKS(of_value_tensor(inner, &result));
    EXPECT(result.dtype == OF_TYPE_F32 && result.rank == 1 && result.dims[0] == 3 && result.bytes == 12);
    EXPECT(((float *)result.data)[2] == 3);
    WORKS(of_session_output_value(session, 1, &found));
    WORKS(of_value_count(found, &count));
    EXPECT(count == 0);
    WORKS(of_session_set_input_value(session, 1, present));
    WORKS(of_session_run(session));
    WORKS(of_session_output_value(session, 1, &found));
    WORKS(of_value_item(found, 0, &inner));
    WORKS(of_value_tensor(inner, &result));
    EXPECT(((float *)result.data)[1] == 2);

    /* An output of a tensor is a value, too, and a value that is a tensor an input. */
    of_session *rows = session_of("rows.plan");
    float row[] = {1, 2, 3, 4};
    const int64_t dims[] = {1, 4};
    of_tensor matrix = f32(dims, row, 1);
    of_value *values = NULL;
    WORKS(of_value_new_tensor(&matrix, &values));
    FAILS(OF_INVALID_ARGUMENT, "has not run", of_session_output_value(rows, 0, &found));
    WORKS(of_session_set_input_value(rows, 0, values));
    WORKS(of_session_run(rows));
    WORKS(of_session_output_value(rows, 0, &found));
    WORKS(of_value_tensor(found, &result));
    EXPECT(((float *)result.data)[3] == 8);
    FAILS(OF_INPUT, "must be a tensor of f32[N, 4]", of_session_set_input_value(rows, 0, sequence));
    FAILS(OF_INPUT, "rank", of_session_set_input(rows, 0, &tensor));
    of_value_free(values);
    of_session_free(rows);

    FAILS(OF_UNSUPPORTED, "of_session_output_value has it", of_session_output(session, 0, &result));
    FAILS(OF_UNSUPPORTED, "has no bytes", of_session_set_output(session, 0, x, sizeof x));
    FAILS(OF_INVALID_ARGUMENT, "no input number 2; there are 2", of_session_set_input_value(session, 2, sequence));
    FAILS(OF_INVALID_ARGUMENT, "no output number 7; there are 2", of_session_output_value(session, 7, &found));
    FAILS(OF_INVALID_ARGUMENT, "`value` is null", of_session_set_input_value(session, 0, NULL));
    FAILS(OF_INVALID_ARGUMENT, "`value` is null", of_session_output_value(session, 0, NULL));
    FAILS(OF_INVALID_ARGUMENT, "no item number 3; there are 3", of_value_item(sequence, 3, &found));
    FAILS(OF_INVALID_ARGUMENT, "no item number 0; there are 0", of_value_item(text, 0, &found));
    FAILS(OF_INVALID_ARGUMENT, "`value` is null", of_value_item(NULL, 0, &found));
    FAILS(OF_INVALID_ARGUMENT, "its items are values", of_value_tensor(sequence, &result));
    FAILS(OF_INVALID_ARGUMENT, "its items are values", of_value_text(absent, 0, &found_text, &length));
    FAILS(OF_INVALID_ARGUMENT, "no string number 1", of_value_text(text, 1, &found_text, &length));
    FAILS(OF_INVALID_ARGUMENT, "`kind` is null", of_value_kind(text, NULL));
    FAILS(OF_INVALID_ARGUMENT, "`count` is null", of_value_count(text, NULL));
    FAILS(OF_INVALID_ARGUMENT, "`tensor` is null", of_value_new_tensor(NULL, &none));
    FAILS(OF_INVALID_ARGUMENT, "`value` is null", of_value_new_tensor(&tensor, NULL));
    FAILS(OF_INVALID_ARGUMENT, "`items` is null", of_value_new_sequence(NULL, 1, &none));
    tensor.bytes = 5;
    FAILS(OF_INVALID_ARGUMENT, "holds 4 bytes, not 5", of_value_new_tensor(&tensor, &none));
    tensor.dtype = OF_TYPE_STRING;
    FAILS(OF_INVALID_ARGUMENT, "of_value_new_text", of_value_new_tensor(&tensor, &none));
    items[0] = items[2] = text;
    items[1] = NULL;
    FAILS(OF_INVALID_ARGUMENT, "`item` is null", of_value_new_sequence(items, 3, &none));
    EXPECT(none == NULL);

    /* Nothing nests so deep that a walk through it exhausts the stack. */
    WORKS(of_value_new_sequence(NULL, 0, &none));
    for (int level = 1; level < 32; ++level) {
        of_value *outer = NULL;
        items[0] = none;
        WORKS(of_value_new_sequence(items, 1, &outer));
        of_value_free(none);
        none = outer;
    }
    of_value *outer = NULL;
    FAILS(OF_INVALID_ARGUMENT, "more than 32 levels", of_value_new_optional(none, &outer));
    of_value_free(none);
    of_value_free(text);
    of_value_free(sequence);
    of_value_free(absent);
    of_value_free(present);
    of_plan_free(plan);
    of_session_free(session);
}

/* Inputs and outputs that end at a page that may not be touched, in every alignment: kernels stay inside. */
static void bounds(const char *plan, size_t row) {
    of_session *session = session_of(plan);
    size_t page = (size_t)sysconf(_SC_PAGESIZE), room = 8 * page;
    char *memory[2];
    for (int i = 0; i < 2; ++i) {
        memory[i] = mmap(NULL, room + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        EXPECT(memory[i] != MAP_FAILED && mprotect(memory[i] + room, page, PROT_NONE) == 0);
    }
    for (int64_t rows = 1; rows <= 70; ++rows) {
        size_t bytes = (size_t)rows * row * sizeof(float);
        float *x = (float *)(memory[0] + room - bytes), *y = (float *)(memory[1] + room - bytes);
        const int64_t dims[] = {rows, 4}, image[] = {rows, 1, 8, 8};
        of_tensor tensor = {OF_TYPE_F32, row == 4 ? 2 : 4, row == 4 ? dims : image, x, bytes};
        for (size_t i = 0; i < (size_t)rows * row; ++i) x[i] = (float)i;
        WORKS(of_session_set_input(session, 0, &tensor));
        WORKS(of_session_set_output(session, 0, y, row == 4 ? bytes : (size_t)rows * 10 * sizeof(float)));
        WORKS(of_session_run(session));
        for (size_t i = 0; row == 4 && i < (size_t)rows * row; ++i) EXPECT(y[i] == 2 * x[i]);
        if (rows == 8) rows = 60;
    }
    of_session_free(session);
}

static void *long_run(void *session) { return (void *)(uintptr_t)of_session_run(session); }

static void cancellation(void) {
    of_session *session = session_of("loop.plan");
    static float x[1024];
    int64_t iterations = INT64_C(1) << 39;
    const int64_t dims[] = {1024};
    of_tensor count = {OF_TYPE_I64, 0, NULL, &iterations, 8}, state = {OF_TYPE_F32, 1, dims, x, sizeof x}, result;
    WORKS(of_session_set_input(session, 0, &count));
    WORKS(of_session_set_input(session, 1, &state));
    pthread_t thread;
    EXPECT(pthread_create(&thread, NULL, long_run, session) == 0);
    /* Once the run has begun, other calls are refused. */
    struct timespec nap = {0, 1000000};
    while (of_session_output(session, 0, &result) != OF_BUSY) nanosleep(&nap, NULL);
    FAILS(OF_BUSY, "another thread", of_session_run(session));
    WORKS(of_session_cancel(session, 1));
    void *ended;
    pthread_join(thread, &ended);
    EXPECT((uintptr_t)ended == OF_CANCELLED);
    FAILS(OF_CANCELLED, "cancelled", of_session_run(session));
    WORKS(of_session_cancel(session, 0));
    iterations = 3;
    WORKS(of_session_run(session));
    WORKS(of_session_output(session, 0, &result));
    EXPECT(result.dims[0] == 1024);
    FAILS(OF_INVALID_ARGUMENT, "`session` is null", of_session_cancel(NULL, 1));
    of_session_free(session);
}

/* A plan that is opened only with a signature: digits.plan.sig was made with the key ed25519.pem. */
static void signatures(void) {
    char path[4096], signature[4200], key[4096], other[4096], counter[4096];
    of_plan *plan = NULL;
    snprintf(path, sizeof path, "%s/digits.plan", folder);
    snprintf(signature, sizeof signature, "%s.sig", path);
    snprintf(key, sizeof key, "%s/ed25519.pub.pem", folder);
    snprintf(other, sizeof other, "%s/p256.pub.pem", folder);
    snprintf(counter, sizeof counter, "%s/counter.plan", folder);
    WORKS(of_plan_open_signed(path, NULL, key, &plan));
    of_plan_free(plan);
    plan = NULL;
    WORKS(of_plan_open_signed(path, signature, key, &plan));
    of_plan_free(plan);
    plan = NULL;
    FAILS(OF_SIGNATURE, "another key", of_plan_open_signed(path, NULL, other, &plan));
    FAILS(OF_SIGNATURE, "the file is not the signed one", of_plan_open_signed(counter, signature, key, &plan));
    FAILS(OF_IO, "counter.plan.sig", of_plan_open_signed(counter, NULL, key, &plan));
    FAILS(OF_IO, "no.pem", of_plan_open_signed(path, NULL, "no.pem", &plan));
    FAILS(OF_INVALID_ARGUMENT, "no public key", of_plan_open_signed(path, NULL, signature, &plan));
    FAILS(OF_INVALID_ARGUMENT, "`key` is null", of_plan_open_signed(path, NULL, NULL, &plan));
    FAILS(OF_INVALID_ARGUMENT, "`plan` is null", of_plan_open_signed(path, NULL, key, NULL));
    EXPECT(plan == NULL);
}

/* A running sum, and how many vectors were added. */
static void variables(void) {
    of_plan *plan = plan_of("counter.plan"), *other = plan_of("counter.plan"), *digits = plan_of("digits.plan");
    of_session *first = NULL, *second = NULL, *refused = NULL;
    size_t count = 9;
    of_port port;
    WORKS(of_plan_variable_count(digits, 0, &count));
    EXPECT(count == 0);
    WORKS(of_plan_variable_count(plan, 0, &count));
    EXPECT(count == 2);
    WORKS(of_plan_input_count(plan, 0, &count));
    EXPECT(count == 1);
    WORKS(of_plan_variable(plan, 0, 0, &port));
    EXPECT(strcmp(port.name, "sum") == 0 && port.dtype == OF_TYPE_F32 && port.rank == 1 && port.dims[0] == 4);
    EXPECT(strcmp(port.type_text, "f32[4]") == 0 && port.dim_names[0] == NULL);
    FAILS(OF_INVALID_ARGUMENT, "no variable number 2; there are 2", of_plan_variable(plan, 0, 2, &port));
    FAILS(OF_INVALID_ARGUMENT, "no program number 3", of_plan_variable_count(plan, 3, &count));

    const int64_t dims[] = {4};
    float x[] = {1, 2, 3, 4}, sum[4];
    int64_t added = -1;
    of_tensor tensor = {OF_TYPE_F32, 1, dims, x, sizeof x};
    WORKS(of_session_new(plan, NULL, &first));
    WORKS(of_session_new_sharing(plan, NULL, first, &second));
    FAILS(OF_INVALID_ARGUMENT, "of another plan", of_session_new_sharing(other, NULL, first, &refused));
    FAILS(OF_INVALID_ARGUMENT, "`other` is null", of_session_new_sharing(plan, NULL, NULL, &refused));
    of_rank_options ranks = {2, NULL, 0, 0, 0};
    FAILS(OF_INVALID_ARGUMENT, "`plan` is null", of_session_new_ranks(NULL, NULL, &ranks, &refused));
    FAILS(OF_INVALID_ARGUMENT, "`ranks` is null", of_session_new_ranks(plan, NULL, NULL, &refused));
    FAILS(OF_INVALID_ARGUMENT, "`session` is null", of_session_new_ranks(plan, NULL, &ranks, NULL));
    FAILS(OF_INVALID_ARGUMENT, "the plan is for 1 rank", of_session_new_ranks(plan, NULL, &ranks, &refused));
    int32_t served = 7;
    WORKS(of_serve_rank(&served));
    EXPECT(served == 0);
    FAILS(OF_INVALID_ARGUMENT, "`served` is null", of_serve_rank(NULL));
    EXPECT(refused == NULL);
    WORKS(of_session_set_input(first, 0, &tensor));
    WORKS(of_session_set_input(second, 0, &tensor));

    /* The sum has no value in a new session. */
    FAILS(OF_INPUT, "variable `sum` has no value", of_session_run(first));
    FAILS(OF_INPUT, "has no value", of_session_get_variable(first, 0, sum, sizeof sum));
    WORKS(of_session_set_variable(first, 0, &tensor));
    WORKS(of_session_run(first));
    WORKS(of_session_run(second));
    WORKS(of_session_get_variable(second, 0, sum, sizeof sum));
    WORKS(of_session_get_variable(first, 1, &added, sizeof added));
    EXPECT(sum[0] == 3 && sum[3] == 12 && added == 2);
    /* What is read is a copy. */
    sum[0] = 100;
    WORKS(of_session_run(first));
    WORKS(of_session_get_variable(first, 0, sum, sizeof sum));
    EXPECT(sum[0] == 4);

    FAILS(OF_BUFFER, "has 16 bytes, and its buffer 15", of_session_get_variable(first, 0, sum, 15));
    FAILS(OF_INVALID_ARGUMENT, "`data` is null", of_session_get_variable(first, 0, NULL, sizeof sum));
    FAILS(OF_INVALID_ARGUMENT, "no variable number 2", of_session_get_variable(first, 2, sum, sizeof sum));
    FAILS(OF_INVALID_ARGUMENT, "`session` is null", of_session_get_variable(NULL, 0, sum, sizeof sum));
    FAILS(OF_INPUT, "is i64[] and cannot be set to f32[4]", of_session_set_variable(first, 1, &tensor));
    FAILS(OF_INVALID_ARGUMENT, "`tensor` is null", of_session_set_variable(first, 1, NULL));
    tensor.bytes -= 1;
    FAILS(OF_INVALID_ARGUMENT, "holds 16 bytes, not 15", of_session_set_variable(first, 0, &tensor));

    WORKS(of_session_reset_variables(second));
    WORKS(of_session_get_variable(first, 1, &added, sizeof added));
    EXPECT(added == 0);
    FAILS(OF_INPUT, "has no value", of_session_run(first));
    FAILS(OF_INVALID_ARGUMENT, "`session` is null", of_session_reset_variables(NULL));
    of_session_free(first);
    WORKS(of_session_get_variable(second, 1, &added, sizeof added));
    of_session_free(second);
    of_plan_free(digits);
    of_plan_free(other);
    of_plan_free(plan);
}

int main(int argc, char **argv) {
    EXPECT(argc == 2);
    folder = argv[1];
    plans();
    options();
    values();
    fixed_values();
    text();
    sequences();
    bounds("rows.plan", 4);
    bounds("digits.plan", 64);
    cancellation();
    variables();
    signatures();
    puts("all checks passed");
    return 0;
}
