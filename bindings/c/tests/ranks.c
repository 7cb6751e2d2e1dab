/* A session whose ranks are processes of this program. Arguments: a plan of two ranks with the variable `state`, and one for one rank.
 * A third one says that a launcher started this program for each rank. */

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

static void refused(of_status status, of_status expected) {
    if (status != expected) {
        fprintf(stderr, "status %u, not %u: %s\n", (unsigned)status, (unsigned)expected, of_error_text());
        exit(1);
    }
    printf("refused: %s\n", of_error_text());
}

/* Runs the session on ones, and prints the first and last element of the output, and of the state. */
static void run(of_session *session, float *y) {
    float state[24];
    WORKS(of_session_run(session));
    WORKS(of_session_get_variable(session, 0, state, sizeof state));
    printf("y %g %g, state %g %g\n", y[0], y[23], state[0], state[23]);
}

int main(int argc, char **argv) {
    int32_t served;
    WORKS(of_serve_rank(&served));
    if (served) {
        return 0;
    }
    if (argc < 3) {
        return 2;
    }
    of_plan *plan, *single;
    of_port port;
    size_t count;
    WORKS(of_plan_open(argv[1], &plan));
    WORKS(of_plan_open(argv[2], &single));
    WORKS(of_plan_program_count(plan, &count));
    WORKS(of_plan_input(plan, 0, 0, &port));
    printf("%zu program, input %s: %s\n", count, port.name, port.type_text);
    WORKS(of_plan_variable(plan, 0, 0, &port));
    printf("variable %s: %s\n", port.name, port.type_text);

    of_session *session = NULL;
    of_rank_options ranks;
    memset(&ranks, 0, sizeof ranks);
    ranks.ranks = 2;
    refused(of_session_new_ranks(single, NULL, &ranks, &session), OF_INVALID_ARGUMENT);
    if (argc == 3) {
        ranks.program = "/bin/true";
        refused(of_session_new_ranks(plan, NULL, &ranks, &session), OF_RUN);
        ranks.program = NULL;
    }
    WORKS(of_session_new_ranks(plan, NULL, &ranks, &session));
    of_plan_free(plan);
    of_plan_free(single);

    float x[24], y[24], state[24];
    const int64_t dims[] = {4, 6};
    for (int i = 0; i < 24; i++) {
        x[i] = 1;
        state[i] = (float)i;
    }
    of_tensor tensor = {OF_TYPE_F32, 2, dims, x, sizeof x};
    WORKS(of_session_set_input(session, 0, &tensor));
    WORKS(of_session_set_output(session, 0, y, sizeof y));
    run(session, y);
    run(session, y);
    of_tensor value = {OF_TYPE_F32, 2, dims, state, sizeof state};
    WORKS(of_session_set_variable(session, 0, &value));
    run(session, y);
    WORKS(of_session_reset_variables(session));
    run(session, y);
    WORKS(of_session_output(session, 0, &tensor));
    printf("output of rank %u at %s memory\n", tensor.rank, tensor.data == (void *)y ? "the caller's" : "its own");
    refused(of_session_get_variable(session, 7, state, sizeof state), OF_INVALID_ARGUMENT);
    if (argc == 3) {
        WORKS(of_session_cancel(session, 1));
        refused(of_session_run(session), OF_CANCELLED);
        WORKS(of_session_cancel(session, 0));
        refused(of_session_run(session), OF_CANCELLED);
    }
    of_session_free(session);
    return 0;
}
