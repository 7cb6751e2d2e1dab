/* cuBLASLt without a device, on host memory: products by plain loops, with the argument checks of the real library.
   $STUB_CUBLASLT selects a failure: "no algorithm" or "no memory". */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "floats.h"

enum { OK = 0, NO_MEMORY = 3, INVALID = 7, NOT_SUPPORTED = 15 };
enum { BF16 = 14 };
typedef struct { int type; uint64_t rows, columns; int64_t line, batch; int batches; } Layout;
typedef struct { int compute, left_transposed, right_transposed, epilogue; const void *bias; } Operation;
typedef struct { uint64_t workspace; uint32_t aligned[4]; } Preference;
typedef struct { uint64_t data[8]; } Algorithm;
typedef struct { Algorithm algorithm; size_t workspace; int state; float waves; int reserved[4]; } Found;

int stub_call(const void *call, void *stream);

static int handle;
/* Descriptors that a thread created and did not destroy. */
static _Thread_local int live;
static int says(const char *what) {
  const char *said = getenv("STUB_CUBLASLT");
  return said && !strcmp(said, what);
}
static void *make(size_t bytes) { live++; return calloc(1, bytes); }
static int unmake(void *it) { live--; free(it); return OK; }

int cublasLtCreate(void **h) { *h = &handle; return says("no memory") ? NO_MEMORY : OK; }
/* Checks that every descriptor was destroyed. */
int cublasLtDestroy(void *h) { if (h != &handle || live) abort(); return OK; }
int cublasLtMatmulDescCreate(Operation **d, int compute, int scale) {
  *d = make(sizeof(Operation));
  (*d)->compute = compute;
  (*d)->epilogue = 1;
  return scale == F32 && (compute == 68 || compute == 74 || compute == 75 || compute == 77) ? OK : INVALID;
}
int cublasLtMatmulDescDestroy(Operation *d) { return unmake(d); }
int cublasLtMatmulDescSetAttribute(Operation *d, int what, const void *value, size_t bytes) {
  void *to = what == 3 ? (void *)&d->left_transposed : what == 4 ? (void *)&d->right_transposed
           : what == 7 ? (void *)&d->epilogue : what == 8 ? (void *)&d->bias : 0;
  if (!to || bytes != (what == 8 ? 8 : 4)) return INVALID;
  memcpy(to, value, bytes);
  return OK;
}
int cublasLtMatrixLayoutCreate(Layout **l, int type, uint64_t rows, uint64_t columns, int64_t line) {
  *l = make(sizeof(Layout));
  **l = (Layout){type, rows, columns, line, 0, 1};
  return (type == F32 || type == F16 || type == BF16) && line >= (int64_t)rows ? OK : INVALID;
}
int cublasLtMatrixLayoutDestroy(Layout *l) { return unmake(l); }
int cublasLtMatrixLayoutSetAttribute(Layout *l, int what, const void *value, size_t bytes) {
  void *to = what == 5 ? (void *)&l->batches : what == 6 ? (void *)&l->batch : 0;
  if (!to || bytes != (what == 5 ? 4 : 8)) return INVALID;
  memcpy(to, value, bytes);
  return OK;
}
int cublasLtMatmulPreferenceCreate(Preference **p) { *p = make(sizeof(Preference)); return OK; }
int cublasLtMatmulPreferenceDestroy(Preference *p) { return unmake(p); }
int cublasLtMatmulPreferenceSetAttribute(Preference *p, int what, const void *value, size_t bytes) {
  void *to = what == 1 ? (void *)&p->workspace : what >= 5 && what <= 8 ? (void *)&p->aligned[what - 5] : 0;
  if (!to || bytes != (what == 1 ? 8 : 4)) return INVALID;
  memcpy(to, value, bytes);
  return OK;
}

/* Rows, columns and reduction length, if the matrices' extents match. */
static int fits(const Operation *o, const Layout *a, const Layout *b, const Layout *d) {
  uint64_t rows = o->left_transposed ? a->columns : a->rows, left = o->left_transposed ? a->rows : a->columns;
  uint64_t columns = o->right_transposed ? b->rows : b->columns, right = o->right_transposed ? b->columns : b->rows;
  int same = a->type == d->type && b->type == d->type && a->batches == d->batches && b->batches == d->batches;
  return same && rows == d->rows && columns == d->columns && left == right && d->batches > 0;
}
int cublasLtMatmulAlgoGetHeuristic(void *h, Operation *o, Layout *a, Layout *b, Layout *c, Layout *d, Preference *p,
                                   int wanted, Found *found, int *count) {
  if (h != &handle || wanted < 1 || c != d || !fits(o, a, b, d) || !p->workspace) return INVALID;
  for (int i = 0; i < 4; i++) if (!p->aligned[i] || p->aligned[i] > 256) return INVALID;
  memset(found, 0, sizeof *found);
  found->workspace = 1024;
  for (int i = 0; i < 4; i++) found->algorithm.data[i] = p->aligned[i];
  found->algorithm.data[4] = 4711;
  *count = says("no algorithm") ? 0 : 1;
  return says("no algorithm") ? NOT_SUPPORTED : OK;
}

typedef struct {
  int (*run)(const void *);
  Operation o;
  Layout a, b, c, d;
  float alpha, beta;
  const void *pa, *pb, *pc;
  void *pd, *workspace;
} Call;

static int run(const void *it) {
  const Call *m = it;
  int type = m->d.type;
  uint64_t depth = m->o.left_transposed ? m->a.rows : m->a.columns;
  memset(m->workspace, 0xff, 1024);
  for (int64_t batch = 0; batch < m->d.batches; batch++)
    for (uint64_t j = 0; j < m->d.columns; j++)
      for (uint64_t i = 0; i < m->d.rows; i++) {
        float sum = 0;
        for (uint64_t k = 0; k < depth; k++) {
          int64_t at = m->o.left_transposed ? k + i * m->a.line : i + k * m->a.line;
          int64_t bt = m->o.right_transposed ? j + k * m->b.line : k + j * m->b.line;
          sum += get(m->pa, type, batch * m->a.batch + at) * get(m->pb, type, batch * m->b.batch + bt);
        }
        float x = m->alpha * sum;
        if (m->beta != 0) x += m->beta * get(m->pc, type, batch * m->c.batch + i + j * m->c.line);
        if (m->o.epilogue & 4) x += get(m->o.bias, type, i);
        if (m->o.epilogue & 2) x = x > 0 ? x : 0;
        if (m->o.epilogue & 32) x = 0.5f * x * (1 + tanhf(0.7978845608f * (x + 0.044715f * x * x * x)));
        put(m->pd, type, batch * m->d.batch + i + j * m->d.line, x);
      }
  return 1;
}

int cublasLtMatmul(void *h, Operation *o, const float *alpha, const void *pa, Layout *a, const void *pb, Layout *b,
                   const float *beta, const void *pc, Layout *c, void *pd, Layout *d, const Algorithm *algorithm,
                   void *workspace, size_t bytes, void *stream) {
  const void *places[4] = {pa, pb, pc, pd};
  if (h != &handle || algorithm->data[4] != 4711 || bytes < 1024 || (uintptr_t)workspace % 16) return INVALID;
  for (int i = 0; i < 4; i++) if ((uintptr_t)places[i] % algorithm->data[i]) return INVALID;
  Call *call = malloc(sizeof(Call));
  *call = (Call){run, *o, *a, *b, *c, *d, *alpha, *beta, pa, pb, pc, pd, workspace};
  return stub_call(call, stream);
}
