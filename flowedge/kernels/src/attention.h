// Attention in which a row reads its keys in the order of their positions, wherever they are cached.
//
// A row's result depends on its own query and on the keys and values of its own path. Keys are read in chunks
// that begin at multiples of CHUNK positions, with an online softmax over the chunks.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "numbers.h"
#include "threads.h"

namespace flowedge {

constexpr int64_t CHUNK = 64;      // positions of a chunk
constexpr float HIDDEN = -1e30f;  // the score of a key that is not read

// The keys and values of a session in one layer, [kv_heads, capacity, head_size] each.
struct Cache {
    int32_t format;                // of keys and values
    void *keys, *values;
    float *key_scales, *value_scales;  // of INT8: [kv_heads, capacity]
    int64_t capacity;
};

// Which keys the rows of a forward read: position j of row m is in slot j if j < linear[m], and otherwise in slot
// slots[offsets[m] + j - linear[m]].
struct Paths {
    const int64_t* positions;  // [rows]
    const int64_t* linear;     // [rows]
    const int64_t* offsets;    // [rows]
    const int64_t* slots;
};

struct Heads {
    int64_t kv_heads, group, size;  // query heads of a key head, and the width of a head
    float scaling, softcap;         // softcap 0: none
    int64_t window;                 // positions that a row sees; 0 for all
    const float* sinks;             // [kv_heads * group], the scores of keys whose values are zero; null for none
};

// Memory of a thread for the attention of one key head. Vectors of a head are followed by zeros up to `width`.
struct AttentionRoom {
    int64_t width;                 // the size of a head, rounded up to a multiple of W
    float *keys, *values;          // [CHUNK, width] each, of a chunk that rows share
    float *own_keys, *own_values;  // of a chunk of one row
    float *queries, *weighted;     // [rows * group, width]
    float *largest, *total;        // [rows * group]

    static int64_t width_of(const Heads& heads) { return (heads.size + W - 1) / W * W; }

    static int64_t floats(int64_t rows, const Heads& heads) {
        return 4 * CHUNK * width_of(heads) + rows * heads.group * 2 * (1 + width_of(heads));
    }

    static AttentionRoom of(float* memory, int64_t rows, const Heads& heads) {
        const int64_t width = width_of(heads), queries = rows * heads.group;
        auto take = [&](int64_t count) {
            float* own = memory;
            memory += count;
            return own;
        };
        AttentionRoom room{width, take(CHUNK * width), take(CHUNK * width), take(CHUNK * width), take(CHUNK * width),
                           take(queries * width), take(queries * width), take(queries), take(queries)};
        if (width != heads.size) std::fill(room.keys, room.largest, 0.0f);
        return room;
    }
};

// The key or value vector of a head in a slot, as floats.
inline void read_vector(const Cache& cache, const void* from, const float* scales, int64_t size, int64_t head,
                        int64_t slot, float* to) {
    const int64_t vector = head * cache.capacity + slot;
    if (cache.format != INT8) {
        read_floats((Format)cache.format, from, vector * size, size, to);
        return;
    }
    const int8_t* own = (const int8_t*)from + vector * size;
    for (int64_t i = 0; i < size; i++) to[i] = (float)own[i] * scales[vector];
}

inline void write_vector(const Cache& cache, void* to, float* scales, int64_t size, int64_t head, int64_t slot,
                         const float* from) {
    const int64_t vector = head * cache.capacity + slot;
    if (cache.format != INT8) {
        write_floats((Format)cache.format, to, vector * size, size, from);
        return;
    }
    float top = 0;
    for (int64_t i = 0; i < size; i++) top = std::max(top, std::fabs(from[i]));
    const float scale = std::max(top / 127.0f, 1.17549435e-38f);
    int8_t* own = (int8_t*)to + vector * size;
    for (int64_t i = 0; i < size; i++) own[i] = (int8_t)std::nearbyint(std::clamp(from[i] / scale, -127.0f, 127.0f));
    scales[vector] = scale;
}

// Adds the keys [first, stop) of a chunk to the sums of one query; `size` is the width of the vectors.
inline void attend_chunk(const float* query, const float* keys, const float* values, int64_t first, int64_t stop,
                         int64_t size, const Heads& heads, float& most, float& total, float* weighted) {
    float scores[CHUNK];
    Floats top = all(most);
    for (int64_t key = first / W * W; key < stop; key += W) {
        Floats parts[W] = {};
        for (int64_t i = 0; i < size; i += W) {
            const Floats own = load<Floats>(query + i);
            for (int j = 0; j < W; j++) parts[j] = fused(own, load<Floats>(keys + (key + j) * size + i), parts[j]);
        }
        Floats score = sums(parts) * heads.scaling;
        if (heads.softcap > 0) score = hyperbolic_tangent(score / heads.softcap) * heads.softcap;
        for (int j = 0; j < W; j++)
            if (key + j < first || key + j >= stop) score[j] = HIDDEN;
        top = larger(top, score);
        store(scores + key, score);
    }
    const float before = most;
    most = largest(top);
    const float fading = exponential(all(before - most))[0];
    Floats added{};
    for (int64_t key = first / W * W; key < stop; key += W) {
        const Floats score = load<Floats>(scores + key);
        // The difference is 0, but NaN for a score that is not finite: the row shall not be finite either.
        const Floats weight = score == all(HIDDEN) ? Floats{} : exponential(score - most) + (score - score);
        added += weight;
        store(scores + key, weight);
    }
    total = total * fading + sum(added);
    constexpr int ACROSS = 4;  // vectors of values whose sums are in registers
    for (int64_t i = 0; i < size; i += ACROSS * W) {
        Floats acc[ACROSS];
        const int own = (int)std::min<int64_t>(ACROSS, (size - i) / W);
        for (int v = 0; v < own; v++) acc[v] = load<Floats>(weighted + i + v * W) * fading;
        for (int64_t key = first; key < stop; key++) {
            const Floats weight = all(scores[key]);
            for (int v = 0; v < own; v++) acc[v] = fused(weight, load<Floats>(values + key * size + i + v * W), acc[v]);
        }
        for (int v = 0; v < own; v++) store(weighted + i + v * W, acc[v]);
    }
}

// The attention of key head `head` for rows [row, row + count): queries and output are [.., kv_heads * group * size].
inline void attend(const float* queries, int64_t query_stride, float* output, int64_t output_stride, int64_t head,
                   int64_t row, int64_t count, const Cache& cache, const Paths& paths, const Heads& heads,
                   const AttentionRoom& room) {
    const int64_t size = heads.size, group = heads.group, width = room.width;
    int64_t low = INT64_MAX, high = 0;
    auto seen_from = [&](int64_t m) {
        return heads.window ? std::max<int64_t>(0, paths.positions[m] - heads.window + 1) : 0;
    };
    // A row sees the positions up to its own, or `linear` of them where these are more, as in a draft head's block.
    auto seen_to = [&](int64_t m) { return std::max(paths.positions[m] + 1, paths.linear[m]); };
    for (int64_t m = row; m < row + count; m++) {
        for (int64_t g = 0; g < group; g++)
            std::memcpy(room.queries + ((m - row) * group + g) * width,
                        queries + m * query_stride + (head * group + g) * size, size * sizeof(float));
        low = std::min(low, seen_from(m));
        high = std::max(high, seen_to(m));
    }
    for (int64_t i = 0; i < count * group; i++) {
        room.largest[i] = heads.sinks ? heads.sinks[head * group + i % group] : HIDDEN;
        room.total[i] = heads.sinks ? 1.0f : 0.0f;
    }
    std::fill(room.weighted, room.weighted + count * group * width, 0.0f);
    auto take = [&](int64_t slot, int64_t place, float* keys, float* values) {
        read_vector(cache, cache.keys, cache.key_scales, size, head, slot, keys + place * width);
        read_vector(cache, cache.values, cache.value_scales, size, head, slot, values + place * width);
    };
    for (int64_t chunk = low / CHUNK * CHUNK; chunk < high; chunk += CHUNK) {
        int64_t shared = 0;  // keys of the chunk that are in the common memory
        for (int64_t m = row; m < row + count; m++) {
            const int64_t first = std::max(seen_from(m), chunk) - chunk;
            const int64_t stop = std::min(seen_to(m), chunk + CHUNK) - chunk;
            if (first >= stop) continue;
            float *keys = room.keys, *values = room.values;
            const int64_t in_place = std::min(stop, std::max<int64_t>(0, paths.linear[m] - chunk));
            if (in_place < stop) {
                keys = room.own_keys, values = room.own_values;
                for (int64_t j = first; j < stop; j++) {
                    const int64_t position = chunk + j;
                    const int64_t behind = paths.offsets[m] + position - paths.linear[m];
                    take(j < in_place ? position : paths.slots[behind], j, keys, values);
                }
            } else {
                for (; shared < stop; shared++) take(chunk + shared, shared, keys, values);
            }
            for (int64_t g = 0; g < group; g++) {
                const int64_t own = (m - row) * group + g;
                attend_chunk(room.queries + own * width, keys, values, first, stop, width, heads, room.largest[own],
                             room.total[own], room.weighted + own * width);
            }
        }
    }
    for (int64_t m = row; m < row + count; m++) {
        for (int64_t g = 0; g < group; g++) {
            const int64_t own = (m - row) * group + g;
            const float* from = room.weighted + own * width;
            float* to = output + m * output_stride + (head * group + g) * size;
            for (int64_t i = 0; i < size; i++) to[i] = from[i] / room.total[own];
        }
    }
}

}  // namespace flowedge
