// Linear recurrences: rows update a matrix for each head along their path, and read it. These are gated delta nets (Yang
// et al., arXiv 2412.06464) and the state spaces of Mamba-2 (Dao and Gu, arXiv 2405.21060), whose C, B and x are here
// queries, keys and values.
//
// The state of a row is its parent's, one update further. One state of a session is held, that behind its committed
// rows; what the rows since then update by is held for each of them, and a forward takes the steps from the held state
// to its rows anew. So a row's bits depend on its path alone.
#pragma once

#include <cmath>
#include <cstring>

#include "products.h"

namespace flowedge {

struct LinearRecurrence {
    int64_t key_heads, value_heads, key_size, value_size;
    int64_t inputs;      // rows of a path that the convolution reads
    int64_t tiled;       // whether heads of values that share a key head lie key_heads apart, otherwise side by side
    // Whether an update takes off what the state knows by its key, as in a delta net; in Mamba-2 it does not.
    int64_t corrects;
    // Of a delta net: to what is convolved, the output's gates, the rates of update, the decays. Of Mamba-2, one: to the
    // gates, what is convolved, and the steps, which are rates and decays.
    Linear in[4];
    const float *convolution, *convolution_bias;  // [inputs, convolved]; [convolved] or null
    const float *decay, *decay_bias;              // [value_heads]: -e^A, and what is added to the decays
    const float* skip;                            // [value_heads], of a row's own value in what it reads; null for none
    const float* norm;  // [value_size], before the gates; of Mamba-2 [values], behind them, for each key head apart

    int64_t keys() const { return key_heads * key_size; }
    int64_t values() const { return value_heads * value_size; }
    int64_t convolved() const { return 2 * keys() + values(); }
    int64_t projected() const { return convolved() + values() + (corrects ? 2 : 1) * value_heads; }
    int64_t stored() const { return convolved() + 2 * value_heads; }  // of a recent row
    // Where a row's products have gates, and what is convolved; and where that has queries, keys and values.
    int64_t gates_at() const { return corrects ? convolved() : 0; }
    int64_t convolved_at() const { return corrects ? 0 : values(); }
    int64_t queries_at() const { return corrects ? 0 : values() + keys(); }
    int64_t keys_at() const { return corrects ? keys() : values(); }
    int64_t values_at() const { return corrects ? 2 * keys() : 0; }
    static int64_t width_of(int64_t size) { return (size + 15) / 16 * 16; }
    int64_t width() const { return width_of(value_size); }        // of a row of a state, zeros included
    int64_t state() const { return key_size * width(); }          // floats of a head's state
};

// A gated short convolution, which reads the rows of a path and has no other state. A row's products are gates of what
// is convolved, gates of the result, and what is convolved.
struct ShortConvolution {
    int64_t inputs;       // rows of a path that are read
    Linear in;            // to three times the width
    const float* weight;  // [inputs, width]
};

// What a session's rows own in a layer: the held state [value_heads, key_size, width], and recent rows.
struct States {
    float *state, *recent;
};

// The steps of a session's rows, the same in all layers; flowedge/models/recurrent/row_steps.py says what they are.
struct Steps {
    int64_t count;
    const int64_t *rows;  // [count, inputs], places of recent rows
    const int64_t *sources, *targets, *outputs;
    int64_t places;  // states beside the held one
    int64_t first;   // place of the forward's first row
};

// Writes what a row updates by, from its products: what is convolved, then rates and decays.
inline void write_recent(const LinearRecurrence& net, const float* projected, float* recent) {
    std::memcpy(recent, projected + net.convolved_at(), net.convolved() * sizeof(float));
    const float* rates = projected + net.convolved() + net.values();
    const float* decays = net.corrects ? rates + net.value_heads : rates;
    float* to = recent + net.convolved();
    for (int64_t h = 0; h < net.value_heads; h++) {
        const float raised = decays[h] + net.decay_bias[h];
        const float steps = raised > 20.0f ? raised : std::log1p(exponential(all(raised))[0]);
        to[h] = net.corrects ? logistic(rates[h]) : steps;
        to[net.value_heads + h] = exponential(all(net.decay[h] * steps))[0];
    }
}

// The convolution [width] of the rows of a path, multiplied by gates, to `to`; `recent` are rows of this width.
inline void convolve_gated(const ShortConvolution& convolution, const float* recent, const int64_t* rows, int64_t width,
                           const float* gates, float* to) {
    for (int64_t i = 0; i < width; i += W) {
        const int64_t own = std::min<int64_t>(W, width - i);
        Floats total{};
        for (int64_t t = 0; t < convolution.inputs; t++)
            total = fused(load_part(recent + rows[t] * width + i, own), load_part(convolution.weight + t * width + i, own),
                          total);
        total = total * load_part(gates + i, own);
        std::memcpy(to + i, &total, own * sizeof(float));
    }
}

// A head of values of a session, computed by one thread.
class RecurrentHead {
  public:
    static int64_t floats(const LinearRecurrence& net, int64_t places) {
        return 2 * LinearRecurrence::width_of(net.key_size) + 2 * net.width() + places * net.state();
    }

    RecurrentHead(const LinearRecurrence& net, const States& states, const Steps& steps, int64_t head, float* memory)
        : net_(net), states_(states), steps_(steps), head_(head), query_(memory),
          key_(query_ + LinearRecurrence::width_of(net.key_size)), value_(key_ + LinearRecurrence::width_of(net.key_size)),
          output_(value_ + net.width()), places_(output_ + net.width()) {}

    // Calls take(output row, values [value_size]) for each step that is read.
    template <class Take>
    void run(const Take& take) {
        const int64_t shared = net_.value_heads / net_.key_heads;
        const int64_t key_head = net_.tiled ? head_ % net_.key_heads : head_ / shared;
        for (int64_t step = 0; step < steps_.count; step++) {
            const int64_t* rows = steps_.rows + step * net_.inputs;
            const bool read = steps_.outputs[step] >= 0;
            convolve(rows, net_.keys_at() + key_head * net_.key_size, net_.key_size, key_);
            convolve(rows, net_.values_at() + head_ * net_.value_size, net_.value_size, value_);
            if (net_.corrects) scale(key_, 1.0f);
            if (read) {
                convolve(rows, net_.queries_at() + key_head * net_.key_size, net_.key_size, query_);
                if (net_.corrects) scale(query_, 1.0f / std::sqrt((float)net_.key_size));
            }
            const float* rates = states_.recent + rows[net_.inputs - 1] * net_.stored() + net_.convolved();
            update(place(steps_.sources[step]), place(steps_.targets[step]), rates[head_],
                   rates[net_.value_heads + head_], read);
            if (read) {
                if (net_.skip)
                    for (int64_t i = 0; i < net_.width(); i += W)
                        store(output_ + i, fused(all(net_.skip[head_]), load<Floats>(value_ + i), load<Floats>(output_ + i)));
                take(steps_.outputs[step], output_);
            }
        }
    }

  private:
    float* place(int64_t index) const {
        return index ? places_ + (index - 1) * net_.state() : states_.state + head_ * net_.state();
    }

    // The activated convolution of some channels of the rows of a path; zeros up to the padded width follow.
    void convolve(const int64_t* rows, int64_t channel, int64_t size, float* to) const {
        for (int64_t i = 0; i < size; i += W) {
            const int64_t own = std::min<int64_t>(W, size - i);
            Floats total{};
            if (net_.convolution_bias) total = load_part(net_.convolution_bias + channel + i, own);
            for (int64_t t = 0; t < net_.inputs; t++) {
                const float* recent = states_.recent + rows[t] * net_.stored() + channel + i;
                total = fused(load_part(recent, own),
                              load_part(net_.convolution + t * net_.convolved() + channel + i, own), total);
            }
            store(to + i, total / (exponential(-total) + 1.0f));
        }
        std::memset(to + (size + W - 1) / W * W, 0,
                    (LinearRecurrence::width_of(size) - (size + W - 1) / W * W) * sizeof(float));
    }

    // Divides a query or key by its length.
    void scale(float* head, float factor) const {
        Floats squares{};
        for (int64_t i = 0; i < net_.key_size; i += W) squares = fused(load<Floats>(head + i), load<Floats>(head + i), squares);
        factor *= 1.0f / std::sqrt(sum(squares) + 1e-6f);
        for (int64_t i = 0; i < net_.key_size; i += W) store(head + i, load<Floats>(head + i) * factor);
    }

    // to = decay * from + rate * key (value - decay * from^T key)^T, of Mamba-2 rate * key value^T; output = to^T query
    // where it is read.
    void update(const float* from, float* to, float rate, float decay, bool read) {
        net_.corrects ? update_by<true>(from, to, rate, decay, read) : update_by<false>(from, to, rate, decay, read);
    }

    template <bool CORRECTS>
    void update_by(const float* from, float* to, float rate, float decay, bool read) {
        constexpr int ACROSS = 8;  // vectors of values whose sums are in registers
        const int64_t width = net_.width();
        for (int64_t at = 0; at < width; at += ACROSS * W) {
            const int own = (int)std::min<int64_t>(ACROSS, (width - at) / W);
            if (own == ACROSS)
                update_columns<CORRECTS, ACROSS>(from + at, to + at, value_ + at, output_ + at, rate, decay, read);
            else
                for (int v = 0; v < own; v++)
                    update_columns<CORRECTS, 1>(from + at + v * W, to + at + v * W, value_ + at + v * W,
                                                output_ + at + v * W, rate, decay, read);
        }
    }

    template <bool CORRECTS, int N>
    void update_columns(const float* from, float* to, const float* value, float* output, float rate, float decay,
                        bool read) const {
        const int64_t width = net_.width();
        Floats known[N] = {};
        if constexpr (CORRECTS) {
            for (int64_t i = 0; i < net_.key_size; i++) {
                const Floats key = all(key_[i]);
                for (int v = 0; v < N; v++) {
                    const Floats faded = load<Floats>(from + i * width + v * W) * decay;
                    store(to + i * width + v * W, faded);
                    known[v] = fused(key, faded, known[v]);
                }
            }
        }
        Floats change[N], found[N] = {};
        for (int v = 0; v < N; v++) {
            const Floats own = load<Floats>(value + v * W);
            change[v] = (CORRECTS ? own - known[v] : own) * rate;
        }
        for (int64_t i = 0; i < net_.key_size; i++) {
            const Floats key = all(key_[i]), query = all(read ? query_[i] : 0.0f);
            for (int v = 0; v < N; v++) {
                const Floats faded = CORRECTS ? load<Floats>(to + i * width + v * W)
                                              : load<Floats>(from + i * width + v * W) * decay;
                const Floats now = fused(key, change[v], faded);
                store(to + i * width + v * W, now);
                found[v] = fused(query, now, found[v]);
            }
        }
        for (int v = 0; v < N; v++) store(output + v * W, found[v]);
    }

    const LinearRecurrence& net_;
    const States& states_;
    const Steps& steps_;
    const int64_t head_;
    float *query_, *key_, *value_, *output_, *places_;
};

}  // namespace flowedge
