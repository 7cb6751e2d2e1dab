/* Runs the programs of plans for AArch64 under an emulator: harness PROGRAMS RESULTS. The file has 64-bit words, as aarch64.rs writes
   them; what is no word is padded to one. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { WRITE = 1, KERNEL = 2, COPY = 3, READ = 4 };
/* What a program did wrong besides a status of a kernel. */
enum { CHANGED_REGISTERS = 1 << 8, WROTE_OUTSIDE = 1 << 9 };

typedef int32_t Kernel(void *const *args, int64_t begin, int64_t end, void *scratch);

/* Calls a kernel, and counts the registers that it should have kept and did not. */
int32_t checked_call(Kernel *kernel, void *const *args, int64_t begin, int64_t end, void *scratch, uint64_t *changed);
__asm__(
  ".text\n.global checked_call\n"
  "checked_call:\n"
  "stp x29, x30, [sp, #-176]!\n mov x29, sp\n"
  "stp x19, x20, [sp, #16]\n stp x21, x22, [sp, #32]\n stp x23, x24, [sp, #48]\n stp x25, x26, [sp, #64]\n stp x27, x28, [sp, #80]\n"
  "stp d8, d9, [sp, #96]\n stp d10, d11, [sp, #112]\n stp d12, d13, [sp, #128]\n stp d14, d15, [sp, #144]\n str x5, [sp, #160]\n"
  ".irp n, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28\n mov x\\n, #100 + \\n\n .endr\n"
  ".irp n, 8, 9, 10, 11, 12, 13, 14, 15\n mov x9, #100 + \\n\n fmov d\\n, x9\n .endr\n"
  "mov x16, x0\n mov x0, x1\n mov x1, x2\n mov x2, x3\n mov x3, x4\n blr x16\n"
  "mov x9, #0\n"
  ".irp n, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28\n cmp x\\n, #100 + \\n\n cinc x9, x9, ne\n .endr\n"
  ".irp n, 8, 9, 10, 11, 12, 13, 14, 15\n fmov x10, d\\n\n cmp x10, #100 + \\n\n cinc x9, x9, ne\n .endr\n"
  "mov x10, sp\n cmp x10, x29\n cinc x9, x9, ne\n mov sp, x29\n ldr x5, [sp, #160]\n str x9, [x5]\n"
  "ldp x19, x20, [sp, #16]\n ldp x21, x22, [sp, #32]\n ldp x23, x24, [sp, #48]\n ldp x25, x26, [sp, #64]\n ldp x27, x28, [sp, #80]\n"
  "ldp d8, d9, [sp, #96]\n ldp d10, d11, [sp, #112]\n ldp d12, d13, [sp, #128]\n ldp d14, d15, [sp, #144]\n"
  "ldp x29, x30, [sp], #176\n ret\n");

static FILE *in, *out;

static void fail(const char *what) { fprintf(stderr, "harness: %s\n", what); exit(2); }

static uint64_t word(void) {
  uint64_t w;
  if (fread(&w, 8, 1, in) != 1) fail("the programs end early");
  return w;
}

static void bytes(void *to, uint64_t n) {
  char padding[8];
  if (n && fread(to, 1, n, in) != n) fail("the programs end early");
  if (n % 8 && fread(padding, 1, 8 - n % 8, in) != 8 - n % 8) fail("the programs end early");
}

enum { GUARD = 256, PATTERN = 0xa5 };

static char *guarded(uint64_t n) {
  char *p = aligned_alloc(4096, (n + GUARD + 4095) / 4096 * 4096);
  if (!p) fail("no memory");
  memset(p, 0, n);
  memset(p + n, PATTERN, GUARD);
  return p;
}

static int is_whole(const char *p, uint64_t n) {
  for (int i = 0; i < GUARD; i++) if ((unsigned char)p[n + i] != PATTERN) return 0;
  return 1;
}

int main(int argc, char **argv) {
  if (argc != 3 || !(in = fopen(argv[1], "rb")) || !(out = fopen(argv[2], "wb"))) fail("harness PROGRAMS RESULTS");
  uint64_t programs = word();
  for (uint64_t p = 0; p < programs; p++) {
    /* The last one named is the one that a signal ended. */
    fprintf(stderr, "program %llu\n", (unsigned long long)p);
    uint64_t count = word(), status = 0;
    char **buffers = calloc(count + 1, sizeof(char *));
    uint64_t *sizes = calloc(count + 1, 8);
    for (uint64_t b = 0; b < count; b++) {
      sizes[b] = word();
      buffers[b] = guarded(sizes[b]);
      if (word()) bytes(buffers[b], sizes[b]);
    }
    uint64_t code_bytes = word();
    char *code = mmap(0, code_bytes + 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (code == MAP_FAILED) fail("no memory");
    bytes(code, code_bytes);
    if (mprotect(code, code_bytes + 1, PROT_READ | PROT_EXEC)) fail("no executable memory");
    __builtin___clear_cache(code, code + code_bytes);
    for (uint64_t steps = word(); steps > 0; steps--) {
      uint64_t kind = word();
      if (kind == WRITE) {
        uint64_t b = word(), at = word(), n = word();
        bytes(buffers[b] + at, n);
      } else if (kind == READ) {
        uint64_t b = word(), at = word(), n = word();
        fwrite(buffers[b] + at, 1, n, out);
      } else if (kind == COPY) {
        uint64_t from = word(), from_at = word(), to = word(), to_at = word(), n = word();
        memmove(buffers[to] + to_at, buffers[from] + from_at, n);
      } else if (kind == KERNEL) {
        Kernel *kernel = (Kernel *)(code + word());
        uint64_t n = word(), changed = 0;
        void **args = calloc(n + 1, sizeof(void *));
        for (uint64_t i = 0; i < n; i++) { uint64_t b = word(); args[i] = buffers[b] + word(); }
        int64_t iterations = word(), grain = word();
        uint64_t scratch_bytes = word();
        char *scratch = guarded(scratch_bytes);
        /* In two parts, as two workers would. */
        int64_t half = iterations / 2 / grain * grain;
        if (half > 0) status |= (uint8_t)checked_call(kernel, args, 0, half, scratch, &changed);
        if (changed) status |= CHANGED_REGISTERS;
        if (half < iterations) status |= (uint8_t)checked_call(kernel, args, half, iterations, scratch, &changed);
        if (changed) status |= CHANGED_REGISTERS;
        if (!is_whole(scratch, scratch_bytes)) status |= WROTE_OUTSIDE;
        free(scratch);
        free(args);
      } else fail("an unknown step");
    }
    for (uint64_t b = 0; b < count; b++) {
      if (!is_whole(buffers[b], sizes[b])) status |= WROTE_OUTSIDE;
      free(buffers[b]);
    }
    free(buffers);
    free(sizes);
    munmap(code, code_bytes + 1);
    fwrite(&status, 8, 1, out);
  }
  if (fclose(out)) fail("the results cannot be written");
  return 0;
}
