/* Recognizes handwritten digits: runs the plan of examples/digits/digits.onnx.
 *
 *   of-opt compile examples/digits/digits.onnx -o digits.plan
 *   cc examples/c/digits.c -I bindings/c/include -L target/release -lof_runtime -o digits
 *   LD_LIBRARY_PATH=target/release ./digits digits.plan examples/digits/images.npy */
#include <stdio.h>
#include <stdlib.h>

#include "of_runtime.h"

enum { IMAGES = 8, PIXELS = 64, DIGITS = 10 };

static void check(of_status status) {
    if (status != OF_OK) {
        fprintf(stderr, "error: %s\n", of_error_text());
        exit(1);
    }
}

/* Reads the elements of a .npy file of version 1: after the magic number and the version follow the length of the header in two
 * bytes, and the header. */
static void read_images(const char *path, float *pixels) {
    unsigned char start[10];
    FILE *file = fopen(path, "rb");
    if (!file || fread(start, 1, sizeof start, file) != sizeof start ||
        fseek(file, start[8] | start[9] << 8, SEEK_CUR) != 0 ||
        fread(pixels, sizeof *pixels, IMAGES * PIXELS, file) != IMAGES * PIXELS) {
        fprintf(stderr, "error: '%s' has no %d images\n", path, IMAGES);
        exit(1);
    }
    fclose(file);
}

int main(int argc, char **argv) {
    static float images[IMAGES * PIXELS], probability[IMAGES * DIGITS];
    const int64_t dims[] = {IMAGES, 1, 8, 8};
    const of_tensor input = {OF_TYPE_F32, 4, dims, images, sizeof images};
    of_plan *plan;
    of_session *session;
    of_port port;
    of_tensor result;

    if (argc != 3) {
        fprintf(stderr, "usage: %s PLAN IMAGES.npy\n", argv[0]);
        return 2;
    }
    if (of_runtime_abi_version() != OF_RUNTIME_ABI_VERSION) {
        fprintf(stderr, "error: the library has another version\n");
        return 1;
    }
    check(of_plan_open(argv[1], &plan));
    check(of_plan_input(plan, 0, 0, &port));
    printf("input %s: %s\n", port.name, port.type_text);
    check(of_plan_output(plan, 0, 0, &port));
    printf("output %s: %s\n", port.name, port.type_text);

    check(of_session_new(plan, NULL, &session));
    of_plan_free(plan); /* the session keeps what it needs */
    read_images(argv[2], images);
    check(of_session_set_input(session, 0, &input));
    check(of_session_set_output(session, 0, probability, sizeof probability));
    check(of_session_run(session));
    check(of_session_output(session, 0, &result));

    printf("digits:");
    for (int64_t i = 0; i < result.dims[0]; ++i) {
        int best = 0;
        for (int digit = 1; digit < DIGITS; ++digit)
            if (probability[i * DIGITS + digit] > probability[i * DIGITS + best]) best = digit;
        printf(" %d", best);
    }
    printf("\n");
    of_session_free(session);
    return 0;
}
