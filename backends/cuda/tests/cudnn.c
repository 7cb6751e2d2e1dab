/* cuDNN without a device, on host memory: convolutions by plain loops, with the argument checks of the real library. Its
   heuristics first list engines with other numerics, that fail to plan, or that need too much workspace. $STUB_CUDNN selects
   a failure: "no engine", "no memory" or "old". */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "floats.h"

enum { OK = 0, BAD = 2000, NOT_FINALIZED = 2004, NOT_SUPPORTED = 3000, NO_MEMORY = 4003 };
enum { BF16 = 9 };
/* Kinds of descriptors, and types of attributes. */
enum { POINTWISE, CONVOLUTION, ENGINE, CONFIG, HEUR, PLAN, FORWARD = 10, OPERATION = 13, GRAPH = 15, PACK, TENSOR };
enum { T_HANDLE, T_TYPE, T_BOOL, T_I64, T_FLOAT, T_PTR = 6, T_CONV_MODE, T_HEUR_MODE, T_NOTE = 11, T_PW_MODE = 14, T_DESC };
enum { TENSOR_CORE = 0, WINOGRAD = 5, STRICT_NAN = 9 };

typedef struct { int kind, name, type, least, most, required; } Rule;
static const Rule rules[] = {
  {POINTWISE, 0, T_PW_MODE, 1, 1, 1},   {POINTWISE, 1, T_TYPE, 1, 1, 1},
  {CONVOLUTION, 100, T_TYPE, 1, 1, 1},  {CONVOLUTION, 101, T_CONV_MODE, 1, 1, 1}, {CONVOLUTION, 102, T_I64, 2, 2, 1},
  {CONVOLUTION, 103, T_I64, 2, 2, 1},   {CONVOLUTION, 104, T_I64, 2, 2, 1},       {CONVOLUTION, 105, T_I64, 2, 2, 1},
  {CONVOLUTION, 106, T_I64, 1, 1, 1},   {HEUR, 200, T_HEUR_MODE, 1, 1, 1},        {HEUR, 201, T_DESC, 1, 1, 1},
  {PLAN, 400, T_HANDLE, 1, 1, 1},       {PLAN, 401, T_DESC, 1, 1, 1},             {FORWARD, 700, T_FLOAT, 1, 1, 1},
  {FORWARD, 701, T_FLOAT, 1, 1, 1},     {FORWARD, 702, T_DESC, 1, 1, 1},          {FORWARD, 703, T_DESC, 1, 1, 1},
  {FORWARD, 704, T_DESC, 1, 1, 1},      {FORWARD, 705, T_DESC, 1, 1, 1},          {OPERATION, 750, T_DESC, 1, 1, 1},
  {OPERATION, 751, T_DESC, 1, 1, 1},    {OPERATION, 752, T_DESC, 1, 1, 0},        {OPERATION, 753, T_DESC, 1, 1, 1},
  {OPERATION, 754, T_FLOAT, 1, 1, 0},   {OPERATION, 755, T_FLOAT, 1, 1, 0},       {GRAPH, 800, T_HANDLE, 1, 1, 1},
  {GRAPH, 801, T_DESC, 1, 4, 1},        {TENSOR, 900, T_I64, 1, 1, 1},            {TENSOR, 901, T_TYPE, 1, 1, 1},
  {TENSOR, 902, T_I64, 4, 4, 1},        {TENSOR, 903, T_I64, 4, 4, 1},            {TENSOR, 906, T_I64, 1, 1, 1},
  {TENSOR, 907, T_BOOL, 1, 1, 0},       {PACK, 1000, T_I64, 3, 5, 1},             {PACK, 1001, T_PTR, 3, 5, 1},
  {PACK, 1003, T_PTR, 1, 1, 1},
};
enum { RULES = sizeof rules / sizeof *rules };

typedef struct Descriptor {
  int kind, alive, finalized, engine;
  struct Descriptor *graph;
  int count[RULES];
  union { int64_t i[8]; int n[8]; float f[8]; void *p[8]; struct Descriptor *d[8]; uint8_t b[8]; } value[RULES];
} Descriptor;
typedef struct { int plans; } Context;

int stub_call(const void *call, void *stream);

static int contexts, live;
static _Thread_local void *on;
static int says(const char *what) {
  const char *said = getenv("STUB_CUDNN");
  return said && !strcmp(said, what);
}
static int rule_of(int kind, int name) {
  for (int r = 0; r < RULES; r++) if (rules[r].kind == kind && rules[r].name == name) return r;
  abort();
}
/* The values of an attribute that was set, and their number. */
#define VALUE(d, name, as) ((d)->value[rule_of((d)->kind, name)].as)
static int set(const Descriptor *d, int name) { return d->count[rule_of(d->kind, name)]; }
static int size(int type) {
  return type == T_BOOL ? 1 : type == T_HANDLE || type == T_I64 || type == T_PTR || type == T_DESC ? 8 : 4;
}

size_t cudnnGetVersion(void) { return says("old") ? 8907 : 92801; }
const char *cudnnGetErrorString(int status) {
  return status == NO_MEMORY ? "CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED"
       : status == NOT_SUPPORTED ? "CUDNN_STATUS_NOT_SUPPORTED" : "CUDNN_STATUS_BAD_PARAM";
}
int cudnnCreate(Context **h) {
  if (says("no memory")) return NO_MEMORY;
  *h = calloc(1, sizeof(Context));
  __atomic_add_fetch(&contexts, 1, __ATOMIC_SEQ_CST);
  return OK;
}
/* Checks that every descriptor was destroyed. */
int cudnnDestroy(Context *h) {
  if (h->plans || (!__atomic_sub_fetch(&contexts, 1, __ATOMIC_SEQ_CST) && __atomic_load_n(&live, __ATOMIC_SEQ_CST))) abort();
  free(h);
  return OK;
}
int cudnnSetStream(Context *h, void *stream) { on = stream; return h ? OK : BAD; }

int cudnnBackendCreateDescriptor(int kind, Descriptor **d) {
  *d = calloc(1, sizeof(Descriptor));
  **d = (Descriptor){.kind = kind, .alive = 1};
  __atomic_add_fetch(&live, 1, __ATOMIC_SEQ_CST);
  return OK;
}
/* The memory is not freed, so a use after destruction is detected. */
int cudnnBackendDestroyDescriptor(Descriptor *d) {
  if (!d->alive) abort();
  if (d->kind == PLAN && d->finalized) ((Context *)VALUE(d, 400, p[0]))->plans--;
  d->alive = 0;
  __atomic_sub_fetch(&live, 1, __ATOMIC_SEQ_CST);
  return OK;
}
int cudnnBackendSetAttribute(Descriptor *d, int name, int type, int64_t count, const void *values) {
  if (!d->alive || d->finalized) return BAD;
  for (int r = 0; r < RULES; r++) {
    const Rule *rule = &rules[r];
    if (rule->kind != d->kind || rule->name != name) continue;
    if (rule->type != type || count < rule->least || count > rule->most) return BAD;
    for (int i = 0; type == T_DESC && i < count; i++) {
      const Descriptor *other = ((Descriptor *const *)values)[i];
      if (!other->alive || !other->finalized) return NOT_FINALIZED;
    }
    memcpy(&d->value[r], values, (size_t)(size(type) * count));
    d->count[r] = (int)count;
    return OK;
  }
  return BAD;
}

static int same(const int64_t *a, const int64_t *b) { return !memcmp(a, b, 4 * sizeof *a); }
static int tensor(const Descriptor *d) {
  const int64_t *n = VALUE(d, 902, i), *s = VALUE(d, 903, i);
  int64_t last[4] = {n[1] * n[2] * n[3], 1, n[1] * n[3], n[1]}, aligned = VALUE(d, 900, i[0]);
  int type = VALUE(d, 901, n[0]), bytes = type == F32 ? 4 : 2;
  for (int i = 0; i < 4; i++) if (n[i] < 1) return BAD;
  return (type == F32 || type == F16 || type == BF16) && same(s, last) && aligned % bytes == 0 && !(aligned & (aligned - 1)) ? OK : BAD;
}
static int forward(const Descriptor *d) {
  const Descriptor *c = VALUE(d, 702, d[0]);
  const int64_t *x = VALUE(VALUE(d, 704, d[0]), 902, i), *w = VALUE(VALUE(d, 703, d[0]), 902, i);
  const int64_t *y = VALUE(VALUE(d, 705, d[0]), 902, i);
  if (x[0] != y[0] || x[1] % w[1] || w[0] % (x[1] / w[1]) || w[0] != y[1] || VALUE(d, 701, f[0]) != 0) return BAD;
  for (int i = 0; i < 2; i++) {
    int64_t padded = x[2 + i] + VALUE(c, 105, i[i]) + VALUE(c, 104, i[i]);
    int64_t reach = (w[2 + i] - 1) * VALUE(c, 102, i[i]) + 1;
    if (padded < reach || (padded - reach) / VALUE(c, 103, i[i]) + 1 != y[2 + i]) return BAD;
  }
  return OK;
}
static int operation(const Descriptor *d) {
  int mode = VALUE(VALUE(d, 750, d[0]), 0, n[0]);
  const int64_t *x = VALUE(VALUE(d, 751, d[0]), 902, i), *y = VALUE(VALUE(d, 753, d[0]), 902, i);
  if (!same(x, y) || (mode == 0) != (set(d, 752) == 1) || (mode == 0) != (set(d, 755) == 1)) return BAD;
  if (mode != 0 && mode != 100 && mode != 104 && mode != 106 && mode != 107) return NOT_SUPPORTED;
  if (mode != 0) return OK;
  const int64_t *b = VALUE(VALUE(d, 752, d[0]), 902, i), line[4] = {1, y[1], 1, 1};
  return same(b, y) || same(b, line) ? OK : BAD;
}
/* A convolution, optionally followed by a residual tensor, a bias and an activation. */
static int graph(const Descriptor *d) {
  int ops = set(d, 801), at = 1;
  Descriptor *const *op = VALUE(d, 801, d);
  if (op[0]->kind != FORWARD) return NOT_SUPPORTED;
  const Descriptor *last = VALUE(op[0], 705, d[0]);
  int type = VALUE(VALUE(op[0], 704, d[0]), 901, n[0]);
  if (VALUE(VALUE(op[0], 703, d[0]), 901, n[0]) != type) return NOT_SUPPORTED;
  for (int i = 1; i < ops; i++) {
    if (op[i]->kind != OPERATION || VALUE(op[i], 751, d[0]) != last) return NOT_SUPPORTED;
    if (!VALUE(last, 907, b[0]) || VALUE(last, 901, n[0]) != F32) return NOT_SUPPORTED;
    last = VALUE(op[i], 753, d[0]);
  }
  if (VALUE(last, 907, b[0]) || VALUE(last, 901, n[0]) != type) return NOT_SUPPORTED;
  if (ops == 1) return OK;
  if (VALUE(op[0], 700, f[0]) != 1) return NOT_SUPPORTED;
  int scaled = 0;
  const int64_t *y = VALUE(last, 902, i), line[4] = {1, y[1], 1, 1};
  if (ops > 2 && set(op[1], 752) && set(op[2], 752)) {
    if (!same(VALUE(VALUE(op[1], 752, d[0]), 902, i), y)) return NOT_SUPPORTED;
    scaled = VALUE(op[1], 754, f[0]) != 1 || VALUE(op[1], 755, f[0]) != 1;
    at = 2;
  }
  if (!set(op[at], 752) || !same(VALUE(VALUE(op[at], 752, d[0]), 902, i), line)) return NOT_SUPPORTED;
  if (VALUE(op[at], 754, f[0]) != 1 || VALUE(op[at], 755, f[0]) != 1) return NOT_SUPPORTED;
  if (++at == ops) return OK;
  int mode = VALUE(VALUE(op[at], 750, d[0]), 0, n[0]);
  return at + 1 == ops && (mode == 100 || !scaled) ? OK : NOT_SUPPORTED;
}
int cudnnBackendFinalize(Descriptor *d) {
  if (!d->alive || d->finalized) return BAD;
  for (int r = 0; r < RULES; r++) if (rules[r].kind == d->kind && rules[r].required && !d->count[r]) return BAD;
  int status = d->kind == TENSOR ? tensor(d) : d->kind == FORWARD ? forward(d) : d->kind == OPERATION ? operation(d)
             : d->kind == GRAPH ? graph(d) : d->kind == PACK && set(d, 1000) != set(d, 1001) ? BAD
             : d->kind == CONVOLUTION && (VALUE(d, 106, i[0]) != 2 || VALUE(d, 101, n[0]) != 1) ? BAD : OK;
  if (status == OK && d->kind == PLAN) {
    d->engine = VALUE(d, 401, d[0])->engine;
    d->graph = VALUE(d, 401, d[0])->graph;
    if (d->engine == 2) return NOT_SUPPORTED;
    ((Context *)VALUE(d, 400, p[0]))->plans++;
  }
  d->finalized = status == OK;
  return status;
}
/* Engines by number: 0 rounds as Winograd does, 1 uses tensor cores, 2 fails to plan, 3 needs too much workspace, 4 is
   plain. */
int cudnnBackendGetAttribute(Descriptor *d, int name, int type, int64_t room, int64_t *count, void *values) {
  if (!d->alive || (d->kind != CONFIG && d->kind != ENGINE && !d->finalized)) return NOT_FINALIZED;
  if (d->kind == HEUR && name == 202 && type == T_DESC) {
    int first = VALUE(d, 200, n[0]) == 3 ? 0 : 4;
    *count = says("no engine") ? 0 : first ? 1 : 4;
    for (int i = 0; i < room && i < *count; i++) {
      Descriptor *to = ((Descriptor **)values)[i];
      if (!to->alive || to->kind != CONFIG) return BAD;
      to->engine = first + i;
      to->graph = VALUE(d, 201, d[0]);
      to->finalized = 1;
    }
  } else if (d->kind == CONFIG && name == 300 && type == T_DESC && room == 1 && d->finalized) {
    Descriptor *to = *(Descriptor **)values;
    if (!to->alive || to->kind != ENGINE) return BAD;
    to->engine = d->engine;
    to->finalized = 1;
    *count = 1;
  } else if (d->kind == ENGINE && name == 1303 && type == T_NOTE && d->finalized) {
    int note = d->engine == 0 ? WINOGRAD : d->engine == 1 ? TENSOR_CORE : STRICT_NAN;
    *count = 1;
    if (room) memcpy(values, &note, sizeof note);
  } else if (d->kind == PLAN && name == 402 && type == T_I64 && room == 1) {
    *count = 1;
    *(int64_t *)values = d->engine == 3 ? (int64_t)1 << 40 : 1024;
  } else {
    return BAD;
  }
  return OK;
}

typedef struct { int type; int64_t n[4], s[4]; char *at; } Tensor;
typedef struct {
  int (*run)(const void *);
  Tensor x, w, z, b, y;
  int64_t dilation[2], stride[2], before[2];
  float alpha, scale, more;
  int added, bias, mode, tf32;
  void *workspace;
} Call;

static float at(const Tensor *t, int64_t a, int64_t b, int64_t c, int64_t d) {
  return get(t->at, t->type, a * t->s[0] + b * t->s[1] + c * t->s[2] + d * t->s[3]);
}
static float rounded(float x, int tf32) {
  uint32_t bits;
  if (!tf32) return x;
  memcpy(&bits, &x, 4);
  bits = (bits + 0x1000) & ~0x1fffu;
  memcpy(&x, &bits, 4);
  return x;
}
static int run(const void *it) {
  const Call *m = it;
  int64_t inputs = m->w.n[1], per_group = m->y.n[1] / (m->x.n[1] / inputs);
  memset(m->workspace, 0xff, 1024);
  for (int64_t n = 0; n < m->y.n[0]; n++)
    for (int64_t o = 0; o < m->y.n[1]; o++)
      for (int64_t p = 0; p < m->y.n[2]; p++)
        for (int64_t q = 0; q < m->y.n[3]; q++) {
          float sum = 0;
          for (int64_t r = 0; r < m->w.n[2]; r++)
            for (int64_t s = 0; s < m->w.n[3]; s++) {
              int64_t h = p * m->stride[0] + r * m->dilation[0] - m->before[0];
              int64_t w = q * m->stride[1] + s * m->dilation[1] - m->before[1];
              if (h < 0 || w < 0 || h >= m->x.n[2] || w >= m->x.n[3]) continue;
              for (int64_t c = 0; c < inputs; c++)
                sum += rounded(at(&m->x, n, o / per_group * inputs + c, h, w), m->tf32) * rounded(at(&m->w, o, c, r, s), m->tf32);
            }
          float x = m->alpha * sum;
          if (m->added) x = m->scale * x + m->more * at(&m->z, n, o, p, q);
          if (m->bias) x += at(&m->b, 0, o, 0, 0);
          if (m->mode == 100) x = x > 0 ? x : 0;
          if (m->mode == 104) x = 0.5f * x * (1 + erff(x * 0.7071067812f));
          if (m->mode == 106) x = x / (1 + expf(-x));
          if (m->mode == 107) x = 0.5f * x * (1 + tanhf(0.7978845608f * (x + 0.044715f * x * x * x)));
          put(m->y.at, m->y.type, n * m->y.s[0] + o * m->y.s[1] + p * m->y.s[2] + q * m->y.s[3], x);
        }
  return 1;
}
/* A tensor at its address, whose alignment is checked against the declared one. */
static int bind_tensor(const Descriptor *tensor, const Descriptor *pack, Tensor *to) {
  to->type = VALUE(tensor, 901, n[0]);
  memcpy(to->n, VALUE(tensor, 902, i), sizeof to->n);
  memcpy(to->s, VALUE(tensor, 903, i), sizeof to->s);
  for (int i = 0; i < set(pack, 1000); i++)
    if (VALUE(pack, 1000, i[i]) == VALUE(tensor, 906, i[0])) to->at = VALUE(pack, 1001, p[i]);
  return tensor->alive && to->at && (uintptr_t)to->at % (uintptr_t)VALUE(tensor, 900, i[0]) == 0;
}
int cudnnBackendExecute(Context *h, Descriptor *plan, Descriptor *pack) {
  if (!plan->alive || !plan->finalized || !pack->alive || !pack->finalized || VALUE(plan, 400, p[0]) != h) return BAD;
  const Descriptor *graph = plan->graph;
  if (!graph->alive || !VALUE(plan, 401, d[0])->alive || plan->engine == 0) return BAD;
  Descriptor *const *op = VALUE(graph, 801, d);
  const Descriptor *c = VALUE(op[0], 702, d[0]), *last = VALUE(op[0], 705, d[0]);
  Call *m = calloc(1, sizeof(Call));
  *m = (Call){.run = run, .alpha = VALUE(op[0], 700, f[0]), .workspace = VALUE(pack, 1003, p[0])};
  int fits = op[0]->alive && c->alive && (uintptr_t)m->workspace % 16 == 0;
  fits = fits && bind_tensor(VALUE(op[0], 704, d[0]), pack, &m->x) && bind_tensor(VALUE(op[0], 703, d[0]), pack, &m->w);
  for (int i = 1; i < set(graph, 801); i++) {
    const Descriptor *b = VALUE(op[i], 752, d[0]);
    last = VALUE(op[i], 753, d[0]);
    fits = fits && op[i]->alive && VALUE(op[i], 750, d[0])->alive;
    if (!b) {
      m->mode = VALUE(VALUE(op[i], 750, d[0]), 0, n[0]);
    } else if (i == 1 && i + 1 < set(graph, 801) && set(op[2], 752)) {
      m->added = 1;
      m->scale = VALUE(op[i], 754, f[0]);
      m->more = VALUE(op[i], 755, f[0]);
      fits = fits && bind_tensor(b, pack, &m->z);
    } else {
      m->bias = 1;
      fits = fits && bind_tensor(b, pack, &m->b);
    }
  }
  if (!fits || !bind_tensor(last, pack, &m->y)) return BAD;
  memcpy(m->dilation, VALUE(c, 102, i), sizeof m->dilation);
  memcpy(m->stride, VALUE(c, 103, i), sizeof m->stride);
  memcpy(m->before, VALUE(c, 105, i), sizeof m->before);
  m->tf32 = plan->engine == 1 && m->x.type == F32;
  return stub_call(m, on);
}
