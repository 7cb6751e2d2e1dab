/* An op in a shared library, in C: clib.swish, x sigmoid(alpha x) of f32, with its gradient.
 *
 *   cc -O2 -shared -fPIC -I docs examples/user-op/swish.c -o libswish.so -lm */
#include "of_library.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static int32_t say(OfSink sink, const char *text) {
    sink.write(sink.context, (const uint8_t *)text, strlen(text));
    return 1;
}

static int32_t infer(const OfCall *call, OfResults results, OfSink error) {
    const OfTensor *x = &call->operands[0];
    if (x->dtype != OF_F32) return say(error, "x must be of f32");
    if (!results.allocate(results.context, 0, x->dtype, x->dims, x->rank)) return say(error, "there is no result 0");
    return 0;
}

static int32_t compute(const OfCall *call, OfResults results, OfSink error) {
    const OfTensor *x = &call->operands[0];
    const float alpha = (float)call->attrs[0].number, *from = (const float *)x->data;
    float *to = (float *)results.allocate(results.context, 0, x->dtype, x->dims, x->rank);
    if (!to) return say(error, "there is no place for result 0");
    for (size_t i = 0; i < x->len / sizeof(float); i++) to[i] = from[i] / (1.0f + expf(-alpha * from[i]));
    return 0;
}

/* A signature a line: what is split along an axis comes out split along it. */
static int32_t sbp(const OfCall *call, OfSink out) {
    char line[32];
    for (uint32_t i = 0; call->operands[0].rank != OF_NO_RANK && i < call->operands[0].rank; i++) {
        snprintf(line, sizeof line, "S(%u) -> S(%u)\n", i, i);
        say(out, line);
    }
    return 0;
}

static int32_t cuda(const OfCall *call, OfLaunch *launch, OfSink out) {
    char text[96];
    launch->unit = OF_THREADS;
    launch->count = 1;
    for (uint32_t i = 0; i < call->results[0].rank; i++) launch->count *= (uint64_t)call->results[0].dims[i];
    snprintf(text, sizeof text, "y[i] = x[i] * one_sigmoid((f32)%.9g * x[i]);\n", call->attrs[0].number);
    say(out, text);
    return 0;
}

/* With s = sigmoid(alpha x), the derivative is s + alpha x s (1 - s). */
static int32_t compute_gradient(const OfCall *call, OfResults results, OfSink error) {
    const OfTensor *x = &call->operands[0];
    const float alpha = (float)call->attrs[0].number;
    const float *at = (const float *)x->data, *gradient = (const float *)call->operands[2].data;
    float *to = (float *)results.allocate(results.context, 0, x->dtype, x->dims, x->rank);
    if (!to) return say(error, "there is no place for result 0");
    for (size_t i = 0; i < x->len / sizeof(float); i++) {
        const float s = 1.0f / (1.0f + expf(-alpha * at[i]));
        to[i] = gradient[i] * (s + alpha * at[i] * s * (1.0f - s));
    }
    return 0;
}

static const OfSlot operands[] = {{"x", OF_ONE}}, results[] = {{"y", OF_ONE}};
static const OfSlot gradient_operands[] = {{"x", OF_ONE}, {"y", OF_ONE}, {"y_gradient", OF_ONE}};
static const OfAttrSlot attrs[] = {{"alpha", OF_FLOAT, 0}};
static const OfOp ops[] = {{
    .name = "clib.swish",
    .doc = "x sigmoid(alpha x), of f32.",
    .onnx = "com.example.clib::Swish",
    .operands = operands, .operand_count = 1,
    .results = results, .result_count = 1,
    .attrs = attrs, .attr_count = 1,
    .infer = infer, .compute = compute, .sbp = sbp, .cuda = cuda,
    .gradient = "clib.swish_gradient",
}, {
    .name = "clib.swish_gradient",
    .doc = "The gradient of clib.swish with respect to x.",
    .operands = gradient_operands, .operand_count = 3,
    .results = operands, .result_count = 1,
    .attrs = attrs, .attr_count = 1,
    .infer = infer, .compute = compute_gradient,
}};
static const OfOps table = {OF_OPS_VERSION, sizeof(OfOp), ops, 2};

const OfOps *of_ops(void) { return &table; }
