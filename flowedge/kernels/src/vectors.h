// Vectors of the widest kind that the target has, and the few operations that differ between instruction sets.
//
// Multiplications and additions are contracted nowhere but in fused(): a row's bits must not depend on the
// instance of a template that computes it.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#else
#error "FlowEdge's kernels are for x86-64 and ARM64"
#endif

namespace flowedge {

#if defined(__AVX512F__)
constexpr int W = 16;  // floats of a vector
#elif defined(__AVX2__)
constexpr int W = 8;
#else
constexpr int W = 4;
#endif

typedef float Floats __attribute__((vector_size(W * 4)));
typedef int32_t Ints __attribute__((vector_size(W * 4)));
typedef uint32_t Words __attribute__((vector_size(W * 4)));
typedef uint16_t Halves __attribute__((vector_size(W * 2)));
typedef int8_t Bytes __attribute__((vector_size(W)));

constexpr int LANES = 16;         // outputs of a block of packed integers, on every target
constexpr int PARTS = LANES / W;  // vectors of such a block

template <class V, class T>
inline V load(const T* from) {
    V value;
    std::memcpy(&value, from, sizeof value);
    return value;
}

template <class V, class T>
inline void store(T* to, V value) {
    std::memcpy(to, &value, sizeof value);
}

inline Floats all(float value) { return Floats{} + value; }

inline Floats fused(Floats a, Floats b, Floats c) {
#if defined(__AVX512F__)
    return (Floats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX2__)
    return (Floats)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
    return (Floats)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#endif
}

inline Floats larger(Floats a, Floats b) { return a > b ? a : b; }
inline Floats smaller(Floats a, Floats b) { return a < b ? a : b; }
inline Floats absolute(Floats a) { return (Floats)((Words)a & 0x7fffffffu); }

// The nearest whole numbers, ties to even, of values within +-2^22.
inline Ints rounded(Floats a) {
    const Floats shifter = all(12582912.0f);
    return (Ints)(a + shifter) - (Ints)shifter;
}

// Up to W numbers, and zeros behind them.
inline Floats load_part(const float* from, int64_t count) {
    if (count == W) return load<Floats>(from);
    float values[W] = {};
    std::memcpy(values, from, count * sizeof(float));
    return load<Floats>(values);
}

// 16 bits -------------------------------------------------------------------------------------------------

inline Floats from_bfloat16(Halves bits) { return (Floats)(__builtin_convertvector(bits, Words) << 16); }

inline Halves to_bfloat16(Floats value) {
    Words bits = (Words)value;
    Words even = bits + 0x7fffu + ((bits >> 16) & 1u);
    bits = value == value ? even : Words{} + 0x7fc00000u;
    return __builtin_convertvector(bits >> 16, Halves);
}

inline Floats from_float16(Halves bits) {
#if defined(__AVX512F__)
    return (Floats)_mm512_cvtph_ps((__m256i)bits);
#elif defined(__AVX2__)
    return (Floats)_mm256_cvtph_ps((__m128i)bits);
#else
    return (Floats)vcvt_f32_f16((float16x4_t)bits);
#endif
}

inline Halves to_float16(Floats value) {
#if defined(__AVX512F__)
    return (Halves)_mm512_cvtps_ph((__m512)value, _MM_FROUND_TO_NEAREST_INT);
#elif defined(__AVX2__)
    return (Halves)_mm256_cvtps_ph((__m256)value, _MM_FROUND_TO_NEAREST_INT);
#else
    return (Halves)vcvt_f16_f32((float32x4_t)value);
#endif
}

// Sums ----------------------------------------------------------------------------------------------------

template <int N>
inline float sum_of(const float* values) {
    float half[N / 2];
    for (int i = 0; i < N / 2; i++) half[i] = values[i] + values[i + N / 2];
    return sum_of<N / 2>(half);
}

template <>
inline float sum_of<1>(const float* values) {
    return values[0];
}

// The sum of a vector's elements, added in a tree.
inline float sum(Floats value) {
    float lanes[W];
    store(lanes, value);
    return sum_of<W>(lanes);
}

inline float largest(Floats value) {
    float most = value[0];
    for (int i = 1; i < W; i++) most = value[i] > most ? value[i] : most;
    return most;
}

#if defined(__AVX512F__)

// Adds quarters of each of 2 N vectors, those that LOW selects to those that HIGH selects. Vector i of the result has
// the sums of vectors i and i + N.
template <int N, int LOW, int HIGH>
inline void add_quarters(Floats* parts) {
    for (int i = 0; i < N; i++) {
        const __m512 a = (__m512)parts[i], b = (__m512)parts[i + N];
        parts[i] = (Floats)_mm512_shuffle_f32x4(a, b, LOW) + (Floats)_mm512_shuffle_f32x4(a, b, HIGH);
    }
}

// Adds elements of each quarter in the same way.
template <int N, int LOW, int HIGH>
inline void add_elements(Floats* parts) {
    for (int i = 0; i < N; i++) {
        const __m512 a = (__m512)parts[i], b = (__m512)parts[i + N];
        parts[i] = (Floats)_mm512_shuffle_ps(a, b, LOW) + (Floats)_mm512_shuffle_ps(a, b, HIGH);
    }
}

// Selections: the two first or last of four, the even or the odd.
constexpr int FIRST = 0x44, LAST = 0xee, EVEN = 0x88, ODD = 0xdd;

// The sums of 16 vectors, in a vector; each is added in the tree of sum(). The vectors are overwritten.
inline Floats sums(Floats* parts) {
    add_quarters<8, FIRST, LAST>(parts);
    add_quarters<4, EVEN, ODD>(parts);
    add_elements<2, FIRST, LAST>(parts);
    add_elements<1, EVEN, ODD>(parts);
    const __m512i order = _mm512_setr_epi32(0, 2, 1, 3, 8, 10, 9, 11, 4, 6, 5, 7, 12, 14, 13, 15);
    return (Floats)_mm512_permutexvar_ps(order, (__m512)parts[0]);
}

// The sums of 8 vectors, in the first half of a vector.
inline Floats half_sums(Floats* parts) {
    add_quarters<4, FIRST, LAST>(parts);
    add_quarters<2, EVEN, ODD>(parts);
    add_elements<1, FIRST, LAST>(parts);
    const __m512 pairs = (__m512)parts[0];
    const __m512 added = (__m512)((Floats)pairs + (Floats)_mm512_permute_ps(pairs, 0xb1));
    const __m512i order = _mm512_setr_epi32(0, 2, 8, 10, 4, 6, 12, 14, 0, 0, 0, 0, 0, 0, 0, 0);
    return (Floats)_mm512_permutexvar_ps(order, added);
}

// Writes the sums of N vectors, which are overwritten, to the first of at least N + 15 floats.
template <int N>
inline void write_sums(Floats* parts, float* to) {
    constexpr int WHOLE = N / 16 * 16, REST = N - WHOLE;
    for (int i = 0; i < WHOLE; i += 16) store(to + i, sums(parts + i));
    if constexpr (REST > 0) {
        Floats rest[REST > 8 ? 16 : 8] = {};
        for (int i = 0; i < REST; i++) rest[i] = parts[WHOLE + i];
        store(to + WHOLE, REST > 8 ? sums(rest) : half_sums(rest));
    }
}

#else

inline Floats sums(Floats* parts) {
    Floats result;
    for (int i = 0; i < W; i++) result[i] = sum(parts[i]);
    return result;
}

template <int N>
inline void write_sums(Floats* parts, float* to) {
    for (int i = 0; i < N; i++) to[i] = sum(parts[i]);
}

#endif

// Functions -----------------------------------------------------------------------------------------------

// e^a with a relative error of 2e-7, for any a; below -87 it is e^-87, above 88 e^88.
inline Floats exponential(Floats a) {
    a = smaller(larger(a, all(-87.0f)), all(88.0f));
    Ints whole = rounded(a * 1.44269504088896341f);
    Floats n = __builtin_convertvector(whole, Floats);
    Floats r = fused(n, all(-0.693359375f), a);
    r = fused(n, all(2.12194440e-4f), r);
    Floats p = fused(all(1.9875691500e-4f), r, all(1.3981999507e-3f));
    p = fused(p, r, all(8.3334519073e-3f));
    p = fused(p, r, all(4.1665795894e-2f));
    p = fused(p, r, all(1.6666665459e-1f));
    p = fused(p, r, all(5.0000001201e-1f));
    p = fused(p, r * r, r + 1.0f);
    return (Floats)((Ints)p + (whole << 23));
}

inline float logistic(float value) { return 1.0f / (1.0f + exponential(all(-value))[0]); }

inline Floats hyperbolic_tangent(Floats a) {
    // The quotient loses digits where a is small; there the series has them.
    Floats wide = 1.0f - 2.0f / (exponential(a + a) + 1.0f);
    Floats square = a * a;
    Floats series = fused(fused(square, all(2.0f / 15.0f), all(-1.0f / 3.0f)), square * a, a);
    return absolute(a) < all(0.04f) ? series : wide;
}

// The bytes of a table of 16 that stand at places 0 .. 15.
inline Words looked_up(const uint8_t* table, Words places) {
#if defined(__AVX512F__)
    const __m512i values = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i*)table));
    return (Words)_mm512_shuffle_epi8(values, (__m512i)places);
#elif defined(__AVX2__)
    const __m256i values = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i*)table));
    return (Words)_mm256_shuffle_epi8(values, (__m256i)places);
#else
    return (Words)vqtbl1q_u8(vld1q_u8(table), (uint8x16_t)places);
#endif
}

// Dot products of integers: lane i adds the products of its four bytes to its sum ----------------------------

#if defined(__AVX512VNNI__)
constexpr bool SIGNED_LEVELS = false;  // levels of 8 bits are multiplied as 0 .. 255, and 128 is taken off later
#else
constexpr bool SIGNED_LEVELS = true;  // levels of 8 bits are multiplied as -128 .. 127
#endif

inline Ints dot(Ints sum, Ints levels, Ints values) {
#if defined(__AVX512VNNI__)
    return (Ints)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)levels, (__m512i)values);
#elif defined(__AVX2__)
    // Products of levels up to 15, two of which fit in 16 bits.
    __m256i pairs = _mm256_maddubs_epi16((__m256i)levels, (__m256i)values);
    return sum + (Ints)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
#elif defined(__ARM_FEATURE_DOTPROD)
    return (Ints)vdotq_s32((int32x4_t)sum, (int8x16_t)levels, (int8x16_t)values);
#else
    int16x8_t low = vmull_s8(vget_low_s8((int8x16_t)levels), vget_low_s8((int8x16_t)values));
    int16x8_t high = vmull_s8(vget_high_s8((int8x16_t)levels), vget_high_s8((int8x16_t)values));
    int32x4_t pairs = vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(high));
    return sum + (Ints)pairs;
#endif
}

// The same for levels of 8 bits, which were stored as 0 .. 255.
inline Ints dot_wide(Ints sum, Ints levels, Ints values) {
#if defined(__AVX512VNNI__)
    return dot(sum, levels, values);
#elif defined(__AVX2__)
    __m256i own = _mm256_xor_si256((__m256i)levels, _mm256_set1_epi8(-128));
    __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(own), _mm256_sign_epi8((__m256i)values, own));
    return sum + (Ints)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
#else
    return dot(sum, levels ^ (int32_t)0x80808080, values);
#endif
}

// Dot products of bfloat16: lane i adds the products of its two numbers to its sum -----------------------------

inline Floats dot_bfloat16(Floats sum, Words a, Words b) {
#if defined(__AVX512BF16__)
    return (Floats)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
#else
    sum = fused((Floats)(a << 16), (Floats)(b << 16), sum);
    return fused((Floats)(a & 0xffff0000u), (Floats)(b & 0xffff0000u), sum);
#endif
}

}  // namespace flowedge
