/* A backend with a fault, for tests of 'of-opt debug': chains of of.abs and of.neg of f32. FAULT is
 *   1  of.abs leaves negative numbers as they are,
 *   2  a chain of two or more ops adds 1 to its last element,
 *   3  while a second chain is loaded, each adds 1 to its last element,
 *   4  every chain reports an error when it runs,
 *   0  no fault. */
#include "of_library.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MOST 64

typedef struct { char ops[MOST]; size_t count; } Chain;

static int32_t say(OfSink sink, const char *text) {
    sink.write(sink.context, (const uint8_t *)text, strlen(text));
    return 1;
}

/* The ops in a function's text: 'a' and 'n'. */
static size_t ops_of(OfBytes function, char *ops) {
    size_t count = 0;
    for (size_t i = 0; i + 6 <= function.len && count < MOST; i++) {
        if (!memcmp(function.data + i, "of.abs", 6)) ops[count++] = 'a';
        if (!memcmp(function.data + i, "of.neg", 6)) ops[count++] = 'n';
    }
    return count;
}

static int32_t claims(OfBytes function, OfSink reason) {
    char ops[MOST];
    return ops_of(function, ops) ? 0 : say(reason, "only abs and neg are supported");
}

static int32_t compile(OfBytes function, OfSink artifact) {
    char ops[MOST];
    artifact.write(artifact.context, (const uint8_t *)ops, ops_of(function, ops));
    return 0;
}

static int loaded;

static int32_t load(OfBytes artifact, void **executable, OfSink error) {
    Chain *chain = calloc(1, sizeof *chain);
    if (!chain || artifact.len > MOST) return say(error, "no memory");
    memcpy(chain->ops, artifact.data, artifact.len);
    chain->count = artifact.len;
    loaded++;
    *executable = chain;
    return 0;
}

static int32_t run(void *executable, const OfTensor *inputs, size_t count, OfResults results, OfSink error) {
    const Chain *chain = executable;
    if (FAULT == 4) return say(error, "broken on purpose");
    if (count != 1) return say(error, "a chain has one input");
    const OfTensor *x = &inputs[0];
    const size_t n = x->len / sizeof(float);
    float *y = (float *)results.allocate(results.context, 0, x->dtype, x->dims, x->rank);
    if (!y) return say(error, "there is no place for the result");
    memcpy(y, x->data, x->len);
    for (size_t i = 0; i < n; i++) {
        for (size_t k = 0; k < chain->count; k++) {
            if (chain->ops[k] == 'n') y[i] = -y[i];
            else if (FAULT != 1) y[i] = fabsf(y[i]);
        }
    }
    if (n && ((FAULT == 2 && chain->count > 1) || (FAULT == 3 && loaded > 1))) y[n - 1] += 1;
    return 0;
}

static void unload(void *executable) {
    loaded--;
    free(executable);
}

static const OfBackend backend = {
    .version = OF_BACKEND_VERSION, .size = sizeof(OfBackend), .name = "broken", .largest_constant = 1,
    .launch = 0, .bandwidth = INFINITY,
    .claims = claims, .compile = compile, .load = load, .run = run, .unload = unload,
};

const OfBackend *of_backend(void) { return &backend; }
