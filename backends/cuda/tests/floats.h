/* Floats as libraries have them: f32 is their type 0, f16 is 2, and bf16 the third one that is used. */
#include <stdint.h>
#include <string.h>

enum { F32 = 0, F16 = 2 };

static float get(const void *from, int type, int64_t i) {
  if (type == F32) return ((const float *)from)[i];
  if (type == F16) return (float)((const _Float16 *)from)[i];
  uint32_t bits = (uint32_t)((const uint16_t *)from)[i] << 16;
  float x;
  memcpy(&x, &bits, 4);
  return x;
}
static void put(void *to, int type, int64_t i, float x) {
  uint32_t bits;
  memcpy(&bits, &x, 4);
  if (type == F32) ((float *)to)[i] = x;
  else if (type == F16) ((_Float16 *)to)[i] = (_Float16)x;
  else ((uint16_t *)to)[i] = (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
