// Mixtures of experts: which experts compute a row, and how threads share their products.
#pragma once

#include <algorithm>
#include <vector>

#include "products.h"

namespace flowedge {

// A mixture of experts in the place of a gated MLP.
struct Mixture {
    int64_t count, chosen;  // experts, and those of a row
    int32_t normalised;     // whether the weights of a row's experts are divided by their sum and `least_sum`
    int32_t rounded;        // whether they, and scores by a sigmoid, are rounded to the format of rows
    int32_t sigmoid;        // whether a score is a sigmoid of the router's product; otherwise, a softmax of all
    float least_sum, scale; // scale: the factor on weights
    const float* choice_bias;  // [count], added to scores to choose experts; null for none
    Linear router;
    // [all(), 3]: gate, up, down, of which the gate has no weight in a layer without gates; all gates and ups round rows
    // alike, and so do all downs, which are as wide. The one behind the others is shared: it computes every row. It
    // rounds as it may, its gate and up alike.
    const Linear* experts;
    float limit, slope;  // of experts' gates and values, see Gate; limit 0: none
    Linear shared_gate;  // of the shared expert's weight; its own weight is null where that is 1
    int32_t shared;      // whether there is a shared expert
    int32_t unrounded;   // whether the router's products are not rounded to the format of rows
    const float* router_norm;  // of the rows that the router reads; null where it reads those of the experts
    const float* scales;       // [count], of the weights of experts; null for none

    bool shares() const { return shared; }
    int64_t all() const { return count + shares(); }
    int64_t of_row() const { return chosen + shares(); }
};

// Rows by their experts. An entry is a row that an expert computes; entries lie by expert, then by row.
class Routing {
  public:
    std::vector<int64_t> expert_of; // of each entry
    std::vector<int64_t> touched;   // experts that compute a row, ascending
    std::vector<int64_t> starts;    // of each touched expert's entries, and the number of entries
    int64_t shared_from;            // first entry of the shared expert; the number of entries where there is none

    int64_t entries() const { return starts.back(); }

    // The entries [chosen] of a row.
    const int64_t* places(int64_t row) const { return places_.data() + row * chosen_; }

    // Makes room for the experts of `rows` rows.
    void begin(const Mixture& mixture, int64_t rows) {
        chosen_ = mixture.of_row();
        experts_.resize(rows * chosen_);
        weights_.resize(rows * chosen_);
        places_.resize(rows * chosen_);
    }

    // Chooses the experts of a row by the router's products [count], which are overwritten by scores: those of the highest
    // scores, the first of equals. The product of the shared expert follows.
    void choose(const Mixture& mixture, int64_t row, float* scores, Format format) {
        int32_t* experts = experts_.data() + row * chosen_;
        float* weights = weights_.data() + row * chosen_;
        float own = mixture.least_sum;
        score(mixture, scores, format);
        static thread_local std::vector<int32_t> order;
        order.resize(mixture.count);
        for (int64_t i = 0; i < mixture.count; i++) order[i] = (int32_t)i;
        auto biased = [&](int32_t i) { return mixture.choice_bias ? scores[i] + mixture.choice_bias[i] : scores[i]; };
        auto first = [&](int32_t a, int32_t b) { return biased(a) != biased(b) ? biased(a) > biased(b) : a < b; };
        const int64_t chosen = mixture.chosen;
        std::partial_sort(order.begin(), order.begin() + chosen, order.end(), first);
        std::copy_n(order.begin(), chosen, experts);
        for (int64_t j = 0; j < chosen; j++) own += scores[experts[j]];
        std::sort(experts, experts + chosen);
        for (int64_t j = 0; j < chosen; j++) {
            weights[j] = scores[experts[j]];
            if (mixture.normalised) weights[j] /= own;
            weights[j] *= mixture.scale;
            if (mixture.scales) weights[j] *= mixture.scales[experts[j]];
        }
        if (mixture.shares()) {
            experts[chosen] = (int32_t)mixture.count;
            weights[chosen] = mixture.shared_gate.weight ? logistic(scores[mixture.count]) : 1.0f;
        }
        if (mixture.rounded) round_to(format, weights, chosen_);
    }

    // Brings the rows whose experts are chosen into the order of entries.
    void sort(const Mixture& mixture) {
        const int64_t entries = (int64_t)experts_.size();
        std::vector<int64_t> next(mixture.all() + 1);
        for (int32_t expert : experts_) next[expert + 1]++;
        touched.clear(), starts.clear();
        for (int64_t expert = 0; expert < mixture.all(); expert++) {
            if (next[expert + 1]) touched.push_back(expert), starts.push_back(next[expert]);
            next[expert + 1] += next[expert];
        }
        starts.push_back(entries);
        shared_from = entries - (mixture.shares() ? entries / chosen_ : 0);
        expert_of.resize(entries);
        for (int64_t i = 0; i < entries; i++) {
            const int64_t place = next[experts_[i]]++;
            places_[i] = place, expert_of[place] = experts_[i];
        }
    }

    // The weighted sum [size] of a row's experts, added up in their order; `computed` are the results of entries.
    void add_up(int64_t row, const float* computed, int64_t stride, int64_t size, float* to) const {
        std::memset(to, 0, size * sizeof(float));
        for (int64_t i = row * chosen_; i < (row + 1) * chosen_; i++) {
            const float* from = computed + places_[i] * stride;
            for (int64_t k = 0; k < size; k++) to[k] += from[k] * weights_[i];
        }
    }

    // A thread's part of products of each expert's entries with linear layers number [first, last) of the experts, whose
    // outputs lie beside each other. The operand of the shared expert is one of its own.
    void multiply(const Mixture& mixture, int first, int last, const Operand& operand, const Operand& of_shared,
                  float* output, int64_t stride, const Team& team) const {
        int64_t total = 0, before = 0;
        auto each_product = [&](auto work) {
            for (size_t t = 0; t < touched.size(); t++) {
                const Linear* own = mixture.experts + touched[t] * 3;
                const int64_t rows = starts[t + 1] - starts[t];
                float* to = output + starts[t] * stride;
                for (int i = first; i < last; to += own[i++].out) work(own[i], starts[t], rows, to);
            }
        };
        // A few rows take as long as one, because the weights are read for them.
        auto cost = [](int64_t rows) { return std::max<int64_t>(rows, FREE_ROWS); };
        each_product([&](const Linear& linear, int64_t, int64_t rows, float*) { total += units_of(linear) * cost(rows); });
        const Range own = team.share(total);
        each_product([&](const Linear& linear, int64_t start, int64_t rows, float* to) {
            const int64_t units = units_of(linear), each = cost(rows);
            auto unit_at = [&](int64_t cost) { return std::clamp<int64_t>((cost - before + each - 1) / each, 0, units); };
            const Range part{unit_at(own.start), unit_at(own.stop)};
            if (part.start < part.stop) {
                const int64_t before_own = start < shared_from ? 0 : shared_from;  // entries of another operand
                const Operand& own_operand = start < shared_from ? operand : of_shared;
                flowedge::multiply(own_operand.rows(entries() - before_own, linear), start - before_own, rows, linear,
                                   part, to, stride);
            }
            before += units * each;
        });
    }

  private:
    static constexpr int64_t FREE_ROWS = 4;

    // Replaces the router's products by the scores of experts.
    static void score(const Mixture& mixture, float* scores, Format format) {
        if (mixture.sigmoid) {
            for (int64_t i = 0; i < mixture.count; i++) scores[i] = logistic(scores[i]);
            if (mixture.rounded) round_to(format, scores, mixture.count);
            return;
        }
        const float most = *std::max_element(scores, scores + mixture.count);
        float total = 0.0f;
        for (int64_t i = 0; i < mixture.count; i++) total += scores[i] = exponential(all(scores[i] - most))[0];
        for (int64_t i = 0; i < mixture.count; i++) scores[i] /= total;
    }

    int64_t chosen_ = 0;
    std::vector<int32_t> experts_;  // [rows, chosen], those of a row ascending
    std::vector<float> weights_;    // [rows, chosen]
    std::vector<int64_t> places_;   // [rows, chosen]: the entry
};

}  // namespace flowedge
