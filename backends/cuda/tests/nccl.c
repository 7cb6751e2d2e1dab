/* NCCL without devices, for ranks that are threads of one process, on host memory. Work that a rank enqueues completes when all ranks
   of the communicator have enqueued theirs, which must be the same calls in the same groups. $STUB_NCCL selects a failure: "no id",
   "no join", or "breaks": rank 1 of a communicator fails at its first call, while rank 0 waits for it. With $STUB_SAYS, each group
   is printed once. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OK = 0, SYSTEM = 2, INVALID = 4 };
enum { ALL_REDUCE, REDUCE_SCATTER, REDUCE, ALL_GATHER, SEND, RECEIVE };
static const char *NAMES[] = {"all-reduce", "reduce-scatter", "reduce", "all-gather", "send", "receive"};
enum { MOST = 16, CALLS = 64 };

typedef struct { int kind; uintptr_t from, to; size_t count; int type, how, peer; } One;
/* The operations that a rank enqueues as one group. */
typedef struct Group {
  int (*run)(const void *);
  struct World *world;
  int rank, count;
  uint64_t number;
  One calls[CALLS];
} Group;
typedef struct World {
  struct World *next;
  char id[128];
  int ranks, joined, left, aborted;
  /* For each rank the groups enqueued and the first one pending, and how many groups all ranks completed. */
  uint64_t put[MOST], finished;
  Group *now[MOST];
} World;
typedef struct { World *world; int rank; } Comm;
typedef struct { char bytes[128]; } Id;

int stub_call(const void *call, void *stream);

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static World *worlds;
static int ids;
static _Thread_local int depth, pending;
static _Thread_local One list[CALLS];
static _Thread_local Comm *on;
static _Thread_local void *where;

static int says(const char *what) {
  const char *said = getenv("STUB_NCCL");
  return said && !strcmp(said, what);
}

int ncclGetUniqueId(Id *id) {
  memset(id, 0, sizeof *id);
  pthread_mutex_lock(&lock);
  snprintf(id->bytes, sizeof id->bytes, "stub %d", ++ids);
  pthread_mutex_unlock(&lock);
  return says("no id") ? SYSTEM : OK;
}
int ncclCommInitRank(void **comm, int ranks, Id id, int rank) {
  if (says("no join")) return SYSTEM;
  if (ranks < 2 || ranks > MOST || rank < 0 || rank >= ranks || strncmp(id.bytes, "stub ", 5)) return INVALID;
  pthread_mutex_lock(&lock);
  World *w = worlds;
  while (w && memcmp(w->id, id.bytes, 128)) w = w->next;
  if (!w) {
    w = calloc(1, sizeof(World));
    memcpy(w->id, id.bytes, 128);
    w->ranks = ranks;
    w->next = worlds;
    worlds = w;
  }
  w->joined++;
  pthread_mutex_unlock(&lock);
  while (((volatile World *)w)->joined < ranks) usleep(50);
  Comm *c = malloc(sizeof(Comm));
  *c = (Comm){w, rank};
  *comm = c;
  return w->ranks == ranks ? OK : INVALID;
}
/* All ranks must destroy their communicators, as with the real library. */
int ncclCommDestroy(void *comm) {
  World *w = ((Comm *)comm)->world;
  pthread_mutex_lock(&lock);
  w->left++;
  pthread_mutex_unlock(&lock);
  while (((volatile World *)w)->left < w->ranks && !((volatile World *)w)->aborted) usleep(50);
  free(comm);
  return OK;
}
int ncclCommAbort(void *comm) {
  ((volatile World *)((Comm *)comm)->world)->aborted = 1;
  fprintf(stderr, "aborted\n");
  return OK;
}
int ncclCommGetAsyncError(void *comm, int *status) { *status = OK; return comm ? OK : INVALID; }

static size_t size(int type) {
  static const size_t sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
  return sizes[type];
}
static float wide(uint16_t x, int type) {
  float y;
  uint32_t bits = (uint32_t)x << 16;
  if (type == 6) { _Float16 h; memcpy(&h, &x, 2); return (float)h; }
  memcpy(&y, &bits, 4);
  return y;
}
static uint16_t narrow(float y, int type) {
  uint32_t bits;
  uint16_t x;
  if (type == 6) { _Float16 h = (_Float16)y; memcpy(&x, &h, 2); return x; }
  memcpy(&bits, &y, 4);
  return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
#define PICK(a, b) (how == 0 ? (a) + (b) : how == 1 ? (a) * (b) : how == 2 ? ((a) > (b) ? (a) : (b)) : (a) < (b) ? (a) : (b))
#define EACH(t) for (size_t i = 0; i < n; i++) ((t *)to)[i] = (t)PICK(((t *)to)[i], ((const t *)from)[i]); break
static void combine(void *to, const void *from, size_t n, int type, int how) {
  switch (type) {
  case 0: EACH(int8_t);
  case 1: EACH(uint8_t);
  case 2: EACH(int32_t);
  case 3: EACH(uint32_t);
  case 4: EACH(int64_t);
  case 5: EACH(uint64_t);
  case 7: EACH(float);
  case 8: EACH(double);
  default:
    for (size_t i = 0; i < n; i++) {
      float a = wide(((uint16_t *)to)[i], type), b = wide(((const uint16_t *)from)[i], type);
      ((uint16_t *)to)[i] = narrow(PICK(a, b), type);
    }
  }
}
/* The reduction of all ranks' elements from an index on; the last rank comes first, so the order differs from ours. */
static void all_of(World *w, int k, size_t first, size_t n, void *to) {
  for (int r = w->ranks - 1; r >= 0; r--) {
    const One *c = &w->now[r]->calls[k];
    const char *from = (const char *)c->from + first * size(c->type);
    if (r == w->ranks - 1) memcpy(to, from, n * size(c->type));
    else combine(to, from, n, c->type, c->how);
  }
}
static void perform(World *w) {
  for (int k = 0; k < w->now[0]->count; k++) {
    const One *c = &w->now[0]->calls[k];
    if (c->kind >= SEND) continue;
    for (int r = 1; r < w->ranks; r++) {
      const One *o = &w->now[r]->calls[k];
      int same = w->now[r]->count == w->now[0]->count && o->kind == c->kind && o->count == c->count;
      if (!same || o->type != c->type || o->how != c->how || o->peer != c->peer) {
        fprintf(stderr, "ranks make other calls\n");
        abort();
      }
    }
  }
  for (int r = 0; r < w->ranks; r++)
    for (int k = 0; k < w->now[r]->count; k++) {
      const One *c = &w->now[r]->calls[k];
      size_t bytes = c->count * size(c->type);
      if (c->kind == ALL_REDUCE || (c->kind == REDUCE && c->peer == r)) all_of(w, k, 0, c->count, (void *)c->to);
      if (c->kind == REDUCE_SCATTER) all_of(w, k, c->count * (size_t)r, c->count, (void *)c->to);
      if (c->kind == ALL_GATHER)
        for (int p = 0; p < w->ranks; p++) memcpy((char *)c->to + (size_t)p * bytes, (void *)w->now[p]->calls[k].from, bytes);
      if (c->kind == RECEIVE) {
        int nth = 0, found = 0;
        for (int i = 0; i < k; i++) nth += w->now[r]->calls[i].kind == RECEIVE && w->now[r]->calls[i].peer == c->peer;
        const Group *o = w->now[c->peer];
        for (int i = 0; i < o->count; i++)
          if (o->calls[i].kind == SEND && o->calls[i].peer == r && nth-- == 0) {
            if (o->calls[i].count != c->count) abort();
            memcpy((void *)c->to, (void *)o->calls[i].from, bytes);
            found = 1;
          }
        if (!found) { fprintf(stderr, "no rank sends it\n"); abort(); }
      }
    }
}
static int run(const void *it) {
  Group *g = (Group *)it;
  World *w = g->world;
  pthread_mutex_lock(&lock);
  int over = w->aborted || w->finished > g->number;
  if (!over && !w->now[g->rank]) w->now[g->rank] = g;
  int here = 0;
  for (int r = 0; r < w->ranks; r++) here += w->now[r] != 0;
  if (!over && here == w->ranks) {
    perform(w);
    for (int r = 0; r < w->ranks; r++) w->now[r] = 0;
    w->finished++;
    over = 1;
  }
  pthread_mutex_unlock(&lock);
  return over;
}

int ncclGroupStart(void) { depth++; return OK; }
int ncclGroupEnd(void) {
  if (--depth || !pending) return OK;
  Group *g = calloc(1, sizeof(Group));
  *g = (Group){run, on->world, on->rank, pending, 0, {{0}}};
  memcpy(g->calls, list, sizeof list);
  g->number = on->world->put[on->rank]++;
  if (getenv("STUB_SAYS")) {
    char text[1024];
    int n = snprintf(text, sizeof text, "rank %d of %d:", on->rank, on->world->ranks);
    for (int i = 0; i < pending; i++) n += snprintf(text + n, sizeof text - n, " %s %zu", NAMES[list[i].kind], list[i].count);
    fprintf(stderr, "%s\n", text);
  }
  pending = 0;
  if (!says("breaks") || on->rank != 1) return stub_call(g, where);
  while (!((volatile World *)on->world)->put[0]) usleep(50);
  return SYSTEM;
}
static int post(One one, void *comm, void *stream) {
  if (!comm || !depth || pending == CALLS || one.type < 0 || one.type > 9) return INVALID;
  on = comm;
  where = stream;
  list[pending++] = one;
  return one.how < 4 && one.peer < on->world->ranks && one.count ? OK : INVALID;
}
int ncclAllReduce(uintptr_t from, uintptr_t to, size_t n, int type, int how, void *comm, void *s) {
  return post((One){ALL_REDUCE, from, to, n, type, how, 0}, comm, s);
}
int ncclReduceScatter(uintptr_t from, uintptr_t to, size_t n, int type, int how, void *comm, void *s) {
  return post((One){REDUCE_SCATTER, from, to, n, type, how, 0}, comm, s);
}
int ncclReduce(uintptr_t from, uintptr_t to, size_t n, int type, int how, int root, void *comm, void *s) {
  return post((One){REDUCE, from, to, n, type, how, root}, comm, s);
}
int ncclAllGather(uintptr_t from, uintptr_t to, size_t n, int type, void *comm, void *s) {
  return post((One){ALL_GATHER, from, to, n, type, 0, 0}, comm, s);
}
int ncclSend(uintptr_t from, size_t n, int type, int peer, void *comm, void *s) {
  return post((One){SEND, from, 0, n, type, 0, peer}, comm, s);
}
int ncclRecv(uintptr_t to, size_t n, int type, int peer, void *comm, void *s) {
  return post((One){RECEIVE, 0, to, n, type, 0, peer}, comm, s);
}
