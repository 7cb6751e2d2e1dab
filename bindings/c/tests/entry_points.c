/* Sessions of the programs of a plan for a mesh of two ranks, which are processes of this program. Arguments: the plan, whose programs have
 * one input of f32 with other extents each. */

#include <of_runtime.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void works(of_status status, const char *what) {
    if (status != OF_OK) {
        fprintf(stderr, "%s: %s\n", what, of_error_text());
        exit(1);
    }
}

#define WORKS(call) works(call, #call)

int main(int argc, char **argv) {
    int32_t served;
    WORKS(of_serve_rank(&served));
    if (served) {
        return 0;
    }
    if (argc != 2) {
        return 2;
    }
    of_plan *plan;
    size_t count;
    WORKS(of_plan_open(argv[1], &plan));
    WORKS(of_plan_program_count(plan, &count));
    for (size_t number = 0; number < count; number++) {
        of_port port;
        WORKS(of_plan_input(plan, number, 0, &port));
        float *x = malloc((size_t)(port.dims[0] * port.dims[1]) * sizeof(float));
        for (int64_t i = 0; i < port.dims[0] * port.dims[1]; i++) {
            x[i] = (float)i;
        }
        of_tensor tensor = {port.dtype, 2, port.dims, x, (size_t)(port.dims[0] * port.dims[1]) * sizeof(float)};
        size_t found;
        WORKS(of_plan_find_program(plan, &tensor, 1, &found));
        of_session_options options;
        memset(&options, 0, sizeof options);
        options.program = found;
        of_rank_options ranks;
        memset(&ranks, 0, sizeof ranks);
        ranks.ranks = 2;
        of_session *session;
        WORKS(of_session_new_ranks(plan, &options, &ranks, &session));
        WORKS(of_session_set_input(session, 0, &tensor));
        WORKS(of_session_run(session));
        WORKS(of_session_output(session, 0, &tensor));
        const float *y = tensor.data;
        printf("program %zu, %s: %lld rows, the last is %g\n", found, port.type_text, (long long)tensor.dims[0],
               y[tensor.dims[0] * tensor.dims[1] - 1]);
        of_session_free(session);
        free(x);
    }
    of_session *none = NULL;
    of_session_options options;
    memset(&options, 0, sizeof options);
    options.program = count;
    of_rank_options ranks;
    memset(&ranks, 0, sizeof ranks);
    ranks.ranks = 2;
    if (of_session_new_ranks(plan, &options, &ranks, &none) == OF_OK) {
        return 1;
    }
    printf("refused: %s\n", of_error_text());
    of_plan_free(plan);
    return 0;
}
