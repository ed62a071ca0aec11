// The likeliest columns of rows of logits.
#pragma once

#include <cmath>
#include <limits>
#include <vector>

#include "vectors.h"

namespace flowedge {

// What a ranking computes beside the logits: value = (logit + factor * noise) / scale.
struct Noise {
    const float* values;  // [columns], or null for the logits alone
    float factor, scale;
};

// Writes the `most` columns with the largest values, falling, the first of equals first, and the logarithms of their
// shares in the sum of all exp(value). A row with NaN or positive infinity gets logarithms of NaN.
// `room` is memory for `columns` floats; 0 < most <= columns.
inline void rank_row(const float* logits, const Noise& noise, int64_t columns, int64_t most, float* room,
                     int64_t* found, double* logs) {
    const float* values = logits;
    int64_t i = 0;
    if (noise.values) {
        const Floats factor = all(noise.factor);
        for (; i + W <= columns; i += W)
            store(room + i, fused(load<Floats>(noise.values + i), factor, load<Floats>(logits + i)) / noise.scale);
        for (; i < columns; i++) room[i] = (logits[i] + noise.factor * noise.values[i]) / noise.scale;
        values = room;
    }
    std::vector<float> best;
    best.reserve(most);
    auto insert = [&](int64_t column) {
        const float value = values[column];
        int64_t place = (int64_t)best.size();
        if (place < most)
            best.push_back(value);
        else
            place--;
        for (; place > 0 && best[place - 1] < value; place--) {
            best[place] = best[place - 1];
            found[place] = found[place - 1];
        }
        best[place] = value, found[place] = column;
    };
    for (i = 0; i < most; i++) insert(i);
    constexpr int64_t STEP = 4 * W;
    for (; i + STEP <= columns; i += STEP) {
        const Floats low = larger(load<Floats>(values + i), load<Floats>(values + i + W));
        const Floats high = larger(load<Floats>(values + i + 2 * W), load<Floats>(values + i + 3 * W));
        if (!(largest(larger(low, high)) > best.back())) continue;
        for (int64_t column = i; column < i + STEP; column++)
            if (values[column] > best.back()) insert(column);
    }
    for (; i < columns; i++)
        if (values[i] > best.back()) insert(i);
    const float top = best[0];
    Floats added{}, unknown{};
    for (i = 0; i + W <= columns; i += W) {
        const Floats value = load<Floats>(values + i);
        added += exponential(value - top);
        unknown += value == value ? Floats{} : value;
    }
    float total = sum(added) + sum(unknown);
    for (; i < columns; i++) total += values[i] == values[i] ? std::exp(values[i] - top) : values[i];
    if (top == std::numeric_limits<float>::infinity()) total = std::numeric_limits<float>::quiet_NaN();
    const float logarithm = std::log(total);
    for (int64_t k = 0; k < most; k++) logs[k] = (double)(best[k] - top - logarithm);
}

}  // namespace flowedge
