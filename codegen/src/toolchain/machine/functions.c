/* Functions in terms of the words of the kernel language (language.rs), instead of those of the C prelude that have intrinsics,
   a form for each instruction set, or names made by macros. */
INLINE vi vround_narrow(vf x, f32 lo, f32 hi) { return round_to_int(hwmin(SPLAT(hi), hwmax(x, SPLAT(lo)))); }
INLINE vf vquotient(vf x, f32 c, f32 r, f32 most) {
  x = hwmin(SPLAT(most), hwmax(SPLAT(-most), x));
  vf q = vrounded(x * SPLAT(r));
  return q + (x - q * SPLAT(c)) * SPLAT(r);
}
INLINE vf vrecip(vf x) {
  if (HAS_AVX512) { vf r = reciprocal_estimate(x); return r + r * (SPLAT(1.0f) - x * r); }
  return SPLAT(1.0f) / x;
}
INLINE vf vscale_normal(vf p, vf n) {
  if (HAS_AVX512) return scale_exponent(p, n, n, SPLAT(-200.0f));
  return p * (vf)((__builtin_convertvector(n, vi) + 127) << 23);
}
INLINE vf vscale(vf p, vf n, vf x, vf low) {
  if (HAS_AVX512) return scale_exponent(p, n, x, low);
  p = pick(x < low, SPLAT(0), p);
  vi e = __builtin_convertvector(n, vi), h = e >> 1;
  return p * (vf)((h + 127) << 23) * (vf)((e - h + 127) << 23);
}
INLINE vi dot4_unsaturated(vi c, vi a, vi b) { return dot2(c, byte_pairs(a, b), SPLATI(0x00010001)); }
INLINE vi dot4(vi c, vi a, vi b) {
  if (HAS_VNNI) return dot4_bytes(c, a, b);
  /* One product of each pair is 0, so the sum of the two fits 16 bits. */
  else return dot4_unsaturated(dot4_unsaturated(c, a, b & 0x00ff00ff), a, b & (i32)0xff00ff00);
}

INLINE u64 eight(const void *p) { return *(const u64 *)p; }
INLINE void put_eight(void *p, u64 x) { *(u64 *)p = x; }

INLINE vf round_f16(vf x) { return widen_f16(narrow_f16(x)); }
INLINE vf load_part_bf16(const bf16 *p, i64 n) { return widen_bf16(load_part_u16(p, n)); }
INLINE vf load_part_f16(const f16 *p, i64 n) { return widen_f16(load_part_u16(p, n)); }
INLINE void store_part_bf16(bf16 *p, vf v, i64 n) { store_part_u16(p, narrow_bf16(v), n); }
INLINE void store_part_f16(f16 *p, vf v, i64 n) { store_part_u16(p, narrow_f16(v), n); }
INLINE f32 one_widen_bf16(bf16 h) { return LANE(widen_bf16(SPLATI(h)), 0); }
INLINE f32 one_widen_f16(f16 h) { return LANE(widen_f16(SPLATI(h)), 0); }
INLINE bf16 one_narrow_bf16(f32 x) { return (bf16)LANE(narrow_bf16(SPLAT(x)), 0); }
INLINE f16 one_narrow_f16(f32 x) { return (f16)LANE(narrow_f16(SPLAT(x)), 0); }
INLINE f32 one_round_bf16(f32 x) { return LANE(round_bf16(SPLAT(x)), 0); }
INLINE f32 one_round_f16(f32 x) { return LANE(round_f16(SPLAT(x)), 0); }

/* Elements at a distance, and with AVX2 a part of narrow elements, go through a buffer, one by one. */
INLINE vf load_step(const f32 *p, i64 step, i64 n) {
  u32 *t = spare(); const u32 *q = (const u32 *)p;
  store((f32 *)t, SPLAT(0));
  for (i64 i = 0; i < n; i++) t[i] = q[i * step];
  return load((const f32 *)t);
}
INLINE vi load_step_i32(const i32 *p, i64 step, i64 n) { return (vi)load_step((const f32 *)p, step, n); }
INLINE u16 *spare_words(const u16 *p, i64 step, i64 n) {
  u16 *t = spare();
  store((f32 *)t, SPLAT(0));
  for (i64 i = 0; i < n; i++) t[i] = p[i * step];
  return t;
}
INLINE u8 *spare_bytes(const u8 *p, i64 step, i64 n) {
  u8 *t = spare();
  store((f32 *)t, SPLAT(0));
  for (i64 i = 0; i < n; i++) t[i] = p[i * step];
  return t;
}
INLINE vi load_step_u16(const u16 *p, i64 step, i64 n) { return load_u16(spare_words(p, step, n)); }
INLINE vi load_step_i16(const i16 *p, i64 step, i64 n) { return load_i16((i16 *)spare_words((const u16 *)p, step, n)); }
INLINE vi load_step_u8(const u8 *p, i64 step, i64 n) { return load_u8(spare_bytes(p, step, n)); }
INLINE vi load_step_i8(const i8 *p, i64 step, i64 n) { return load_i8((i8 *)spare_bytes((const u8 *)p, step, n)); }
INLINE vf load_step_f16(const f16 *p, i64 step, i64 n) { return widen_f16(load_step_u16(p, step, n)); }
INLINE vf load_step_bf16(const bf16 *p, i64 step, i64 n) { return widen_bf16(load_step_u16(p, step, n)); }
INLINE vi load_mask(const b8 *p, i64 step, i64 n) { return SPLATI(0) - load_step_u8(p, step, n); }
INLINE void copy_words(u16 *to, const u16 *from, i64 n) { for (i64 i = 0; i < n; i++) to[i] = from[i]; }
INLINE void copy_bytes(u8 *to, const u8 *from, i64 n) { for (i64 i = 0; i < n; i++) to[i] = from[i]; }
INLINE vi narrow_load_u16(const u16 *p, i64 n) { return load_step_u16(p, 1, n); }
INLINE vi narrow_load_i16(const i16 *p, i64 n) { return load_step_i16(p, 1, n); }
INLINE vi narrow_load_u8(const u8 *p, i64 n) { return load_step_u8(p, 1, n); }
INLINE vi narrow_load_i8(const i8 *p, i64 n) { return load_step_i8(p, 1, n); }
INLINE void narrow_store_words(u16 *p, vi v, i64 n) { u16 *t = spare(); store_u16(t, v); copy_words(p, t, n); }
INLINE void narrow_store_bytes(u8 *p, vi v, i64 n) { u8 *t = spare(); store_u8(t, v); copy_bytes(p, t, n); }

INLINE void move(void *to, const void *from, i64 n) {
  u8 *t = (u8 *)to; const u8 *f = (const u8 *)from; i64 i = 0;
  for (; i + 4 * LANES <= n; i += 4 * LANES) store((f32 *)(t + i), load((const f32 *)(f + i)));
  for (; i + 8 <= n; i += 8) *(u64 *)(t + i) = *(const u64 *)(f + i);
  for (; i < n; i++) t[i] = f[i];
}

INLINE void fill(void *to, u64 pattern, i64 n) {
  u8 *t = (u8 *)to; i64 i = 0;
  const vlu v = pattern;
  for (; i + 4 * LANES <= n; i += 4 * LANES) store((f32 *)(t + i), (vf)v);
  for (; i + 8 <= n; i += 8) *(u64 *)(t + i) = pattern;
  for (; i < n; i++) { t[i] = (u8)pattern; pattern = pattern >> 8; }
}

INLINE void move_piece(void *to, const void *from, i64 n) { move(to, from, n); }

INLINE f32 hsum(vf v) {
  if (LANES > 8) v = v + exchange(v, 8);
  if (LANES > 4) v = v + exchange(v, 4);
  v = v + exchange(v, 2); v = v + exchange(v, 1);
  return LANE(v, 0);
}
INLINE f32 hprod(vf v) {
  if (LANES > 8) v = v * exchange(v, 8);
  if (LANES > 4) v = v * exchange(v, 4);
  v = v * exchange(v, 2); v = v * exchange(v, 1);
  return LANE(v, 0);
}
INLINE f32 hmax(vf v) {
  if (LANES > 8) v = vmax(v, exchange(v, 8));
  if (LANES > 4) v = vmax(v, exchange(v, 4));
  v = vmax(v, exchange(v, 2)); v = vmax(v, exchange(v, 1));
  return LANE(v, 0);
}
INLINE f32 hmin(vf v) {
  if (LANES > 8) v = vmin(v, exchange(v, 8));
  if (LANES > 4) v = vmin(v, exchange(v, 4));
  v = vmin(v, exchange(v, 2)); v = vmin(v, exchange(v, 1));
  return LANE(v, 0);
}
INLINE vd SPLATD(f64 x) { return lanes_of_f64(x); }
INLINE vd SELECT_F64(vlu m, vd a, vd b) { return (vd)pick((vi)m, (vf)a, (vf)b); }
INLINE vlu LONG_BITS(vd x) { return (vlu)x; }
INLINE vd DOUBLE(vlu x) { return (vd)x; }
