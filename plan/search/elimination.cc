// Minimises a sum of unary and binary terms over discrete variables, optionally under a limit on a
// second sum.
//
// Elimination. Variables are eliminated one by one. Eliminating v takes all terms that mention v
// and replaces them by one new term over the other variables of those terms, its scope: for every
// combination of their options the new term holds the minimum sum over the options of v, and the
// option that attains it is recorded. When all variables are gone, the best options are read back
// in reverse order. This is bucket elimination (Dechter, "Bucket elimination: a unifying framework
// for reasoning", Artificial Intelligence 113, 1999), known earlier as nonserial dynamic
// programming (Bertele and Brioschi 1972). On a chain of layers it is the textbook dynamic program;
// a branch adds its producer to the scopes. OptCNN (Jia, Lin, Qi, Aiken, "Exploring hidden
// dimensions in parallelizing convolutional neural networks", ICML 2018) solves the same problem by
// eliminating nodes and edges, which corresponds to scopes of at most two variables.
//
// Invariant: a pair is used by the step that eliminates the first of its two variables, a new term
// by the step that eliminates the first variable of its scope; so every term is used exactly once.
//
// Cost: the sum over all steps of the product of the options of the variable and of its scope. The
// order is greedy by minimum degree, which need not give the smallest scopes. Problems with
// terms that would have too many entries are reduced (reduced_problem.h).
//
// Limit. Minimising seconds under a limit on bytes contains the knapsack problem and is NP-hard.
// Two methods are used in turn:
//
//   1. Lagrangian relaxation: bytes get a price, in seconds per byte, and plain elimination
//      minimises sum + price * bytes. That minimum less price * limit is a lower bound on the sum
//      of every choice that fits. Prices are chosen as by Handler and Zang for constrained shortest
//      paths ("A dual algorithm for the constrained shortest path problem", Networks 10, 1980): for
//      one choice above the limit and one below it, the next price is the one at which both cost
//      the same.
//   2. If a gap remains and the problem is small, elimination with Pareto labels: an entry holds,
//      in place of one sum, all pairs (sum, bytes) that no other pair beats in both. If it has more
//      than max_labels pairs, some are dropped at even distances and the result is marked as not
//      exact; the lower bound of the relaxation still holds.
#include "plan/search/elimination.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "plan/search/reduced_problem.h"

namespace cadre {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();

// A table over the options of the variables in its scope; the last variable varies fastest.
template <typename Entry>
struct Term {
  std::vector<int> scope;
  std::vector<Entry> entries;
};

// Distance between the entries of neighbouring options of a variable in a term with this scope; 0
// if the variable is not in the scope.
size_t StrideOf(const SumProblem& problem, const std::vector<int>& scope, int variable) {
  size_t stride = 1;
  for (auto v = scope.rbegin(); v != scope.rend(); ++v) {
    if (*v == variable) return stride;
    stride *= problem.options(*v);
  }
  return 0;
}

// Iterates over all combinations of options of a scope and keeps the current offset into each of
// several terms.
class Odometer {
 public:
  // strides[t][s]: the stride of term t for variable s of the scope.
  Odometer(const SumProblem& problem, const std::vector<int>& scope,
           std::vector<std::vector<size_t>> strides)
      : strides_(std::move(strides)), digits_(scope.size(), 0), offsets_(strides_.size(), 0) {
    for (const int v : scope) sizes_.push_back(problem.options(v));
  }

  size_t offset(size_t term) const { return offsets_[term]; }

  void Next() {
    for (size_t s = digits_.size(); s-- > 0;) {
      const bool wraps = ++digits_[s] == sizes_[s];
      for (size_t t = 0; t < offsets_.size(); ++t) {
        offsets_[t] += strides_[t][s];
        if (wraps) offsets_[t] -= strides_[t][s] * sizes_[s];
      }
      if (!wraps) return;
      digits_[s] = 0;
    }
  }

 private:
  std::vector<std::vector<size_t>> strides_;
  std::vector<size_t> sizes_;
  std::vector<size_t> digits_;
  std::vector<size_t> offsets_;
};

// The strides of a term with scope `of_term` for the variables of another scope.
std::vector<size_t> StridesOf(const SumProblem& problem, const std::vector<int>& of_term,
                              const std::vector<int>& scope) {
  std::vector<size_t> strides;
  for (const int v : scope) strides.push_back(StrideOf(problem, of_term, v));
  return strides;
}

// The terms that a step combines: all terms of its variable that no earlier step has used.
struct StepTerms {
  std::vector<int> pairs;
  // Steps whose terms are terms_of.
  std::vector<int> terms;
};

std::vector<StepTerms> TermsByStep(const SumProblem& problem, const EliminationOrder& order) {
  std::vector<int> when(problem.size());
  const int steps = std::ssize(order);
  for (int s = 0; s < steps; ++s) when[order[s].variable] = s;
  std::vector<StepTerms> terms_of(steps);
  for (size_t p = 0; p < problem.pairs.size(); ++p) {
    const int first = std::min(when[problem.pairs[p].a], when[problem.pairs[p].b]);
    terms_of[first].pairs.push_back(p);
  }
  for (int s = 0; s < steps; ++s) {
    int first = steps;
    for (const int v : order[s].scope) first = std::min(first, when[v]);
    if (first < steps) terms_of[first].terms.push_back(s);
  }
  return terms_of;
}

// --- Without a limit ---

class Eliminator {
 public:
  Eliminator(const SumProblem& problem, const EliminationOrder& order)
      : problem_(problem), order_(order), terms_of_(TermsByStep(problem, order)) {}

  SumSolution Run() {
    terms_.resize(order_.size());
    best_.resize(order_.size());
    for (size_t s = 0; s < order_.size(); ++s) Eliminate(s);
    SumSolution solution{.choice = std::vector<int>(problem_.size(), 0)};
    for (size_t s = order_.size(); s-- > 0;) Choose(s, solution.choice);
    for (const std::vector<uint16_t>& options : best_) solution.states += options.size();
    solution.sum = SumOf(problem_, solution.choice);
    if (!problem_.bytes.empty()) solution.bytes = BytesOf(problem_, solution.choice);
    return solution;
  }

 private:
  struct Source {
    const double* values = nullptr;
    size_t stride = 0;
  };

  void Eliminate(size_t s) {
    const auto& [variable, scope] = order_[s];
    std::vector<Source> sources;
    std::vector<std::vector<size_t>> strides;
    const auto add = [&](const std::vector<int>& term_scope, const double* values) {
      sources.push_back({values, StrideOf(problem_, term_scope, variable)});
      strides.push_back(StridesOf(problem_, term_scope, scope));
    };
    for (const int p : terms_of_[s].pairs) {
      const SumProblem::Pair& pair = problem_.pairs[p];
      add({pair.a, pair.b}, pair.table->data());
    }
    for (const int t : terms_of_[s].terms) add(terms_[t].scope, terms_[t].entries.data());

    const std::vector<double>& own = problem_.unary[variable];
    const int64_t entries = EntriesOf(problem_, scope);
    terms_[s] = {scope, std::vector<double>(entries)};
    best_[s].resize(entries);
    Odometer odometer(problem_, scope, std::move(strides));
    sums_.resize(own.size());
    for (int64_t e = 0; e < entries; ++e, odometer.Next()) {
      std::copy(own.begin(), own.end(), sums_.begin());
      for (size_t t = 0; t < sources.size(); ++t) {
        Add(sources[t].values + odometer.offset(t), sources[t].stride);
      }
      const auto min_sum = std::min_element(sums_.begin(), sums_.end());
      terms_[s].entries[e] = *min_sum;
      best_[s][e] = min_sum - sums_.begin();
    }
    for (const int t : terms_of_[s].terms) terms_[t].entries = {};
  }

  void Add(const double* values, size_t stride) {
    if (stride == 1) {
      for (size_t o = 0; o < sums_.size(); ++o) sums_[o] += values[o];
    } else {
      for (size_t o = 0; o < sums_.size(); ++o) sums_[o] += values[o * stride];
    }
  }

  // Sets the step's variable to its best option for the choices of its scope.
  void Choose(size_t s, std::vector<int>& choice) const {
    const auto& [variable, scope] = order_[s];
    size_t at = 0;
    for (const int v : scope) at = at * problem_.options(v) + choice[v];
    choice[variable] = best_[s][at];
  }

  const SumProblem& problem_;
  const EliminationOrder& order_;
  const std::vector<StepTerms> terms_of_;
  std::vector<Term<double>> terms_;
  std::vector<std::vector<uint16_t>> best_;
  std::vector<double> sums_;
};

// --- Pareto labels ---

// A pair of sums with its derivation: an option of one variable added to another label, or two
// labels of disjoint variables combined.
struct Label {
  double sum = 0;
  int64_t bytes = 0;
  int node = -1;
  // The option or the node that this label adds to `node`; used until the label has its own node.
  int other = -1;
};

struct Node {
  int variable = -1;
  int option = 0;
  int a = -1;
  int b = -1;
};

class LimitedEliminator {
 public:
  using Labels = std::vector<Label>;

  LimitedEliminator(const SumProblem& problem, const EliminationOrder& order, int64_t limit,
                    size_t max_labels)
      : problem_(problem), order_(order), terms_of_(TermsByStep(problem, order)), max_(max_labels) {
    // Bytes are counted in excess of each variable's minimum, so that a partial choice that cannot
    // be completed within the limit is dropped immediately.
    spare_ = limit - MinBytes(problem);
    for (const std::vector<int64_t>& bytes : problem.bytes) {
      min_.push_back(*std::min_element(bytes.begin(), bytes.end()));
    }
  }

  std::optional<SumSolution> Run() {
    if (spare_ < 0) return std::nullopt;
    terms_.resize(order_.size());
    for (size_t s = 0; s < order_.size(); ++s) Eliminate(s);
    Labels all = {{0, 0, -1}};
    for (size_t s = 0; s < order_.size(); ++s) {
      if (order_[s].scope.empty()) all = Combine(all, terms_[s].entries[0]);
    }
    if (all.empty()) return std::nullopt;
    const Label best = *std::min_element(
        all.begin(), all.end(), [](const Label& a, const Label& b) { return a.sum < b.sum; });
    SumSolution solution{.choice = std::vector<int>(problem_.size(), 0), .exact = exact_};
    ReadChoice(best.node, solution.choice);
    solution.sum = SumOf(problem_, solution.choice);
    solution.bytes = BytesOf(problem_, solution.choice);
    solution.states = states_;
    return solution;
  }

 private:
  void Eliminate(size_t s) {
    const auto& [variable, scope] = order_[s];
    const std::vector<int>& pairs = terms_of_[s].pairs;
    const std::vector<int>& terms = terms_of_[s].terms;
    // By term, pairs first: its strides for the scope, and for the variable.
    std::vector<std::vector<size_t>> strides;
    std::vector<size_t> own_strides;
    const auto add = [&](const std::vector<int>& term_scope) {
      strides.push_back(StridesOf(problem_, term_scope, scope));
      own_strides.push_back(StrideOf(problem_, term_scope, variable));
    };
    for (const int p : pairs) add({problem_.pairs[p].a, problem_.pairs[p].b});
    for (const int t : terms) add(terms_[t].scope);
    Odometer odometer(problem_, scope, std::move(strides));
    const int64_t entries = EntriesOf(problem_, scope);
    terms_[s] = {scope, std::vector<Labels>(entries)};
    for (int64_t e = 0; e < entries; ++e, odometer.Next()) {
      Labels& into = terms_[s].entries[e];
      for (int o = 0; o < std::ssize(problem_.unary[variable]); ++o) {
        double sum = problem_.unary[variable][o];
        for (size_t t = 0; t < pairs.size(); ++t) {
          sum += (*problem_.pairs[pairs[t]].table)[odometer.offset(t) + o * own_strides[t]];
        }
        const int64_t bytes = problem_.bytes[variable][o] - min_[variable];
        Labels labels = {{0, 0, -1}};
        for (size_t t = 0; t < terms.size(); ++t) {
          const size_t number = pairs.size() + t;
          const size_t at = odometer.offset(number) + o * own_strides[number];
          labels = Combine(labels, terms_[terms[t]].entries[at]);
        }
        for (const Label& label : labels) {
          if (label.bytes + bytes > spare_) continue;
          into.push_back({label.sum + sum, label.bytes + bytes, label.node, o});
        }
      }
      KeepPareto(into);
      for (Label& label : into) NewNode(label, {variable, label.other, label.node, -1});
      states_ += into.size();
    }
    for (const int t : terms) terms_[t].entries = {};
  }

  Labels Combine(const Labels& a, const Labels& b) {
    if (a.size() == 1 && a[0].node < 0) return b;
    Labels labels;
    for (const Label& x : a) {
      for (const Label& y : b) {
        if (x.bytes + y.bytes > spare_) continue;
        labels.push_back({x.sum + y.sum, x.bytes + y.bytes, x.node, y.node});
      }
    }
    KeepPareto(labels);
    for (Label& label : labels) NewNode(label, {-1, 0, label.node, label.other});
    return labels;
  }

  void NewNode(Label& label, const Node& node) {
    nodes_.push_back(node);
    label.node = std::ssize(nodes_) - 1;
  }

  // Keeps the labels that no other label beats in both sums; drops some at even distances if there
  // are too many.
  void KeepPareto(Labels& labels) {
    std::sort(labels.begin(), labels.end(), [](const Label& a, const Label& b) {
      return a.sum != b.sum ? a.sum < b.sum : a.bytes < b.bytes;
    });
    int64_t minimum = std::numeric_limits<int64_t>::max();
    Labels kept;
    for (const Label& label : labels) {
      if (label.bytes >= minimum) continue;
      minimum = label.bytes;
      kept.push_back(label);
    }
    if (kept.size() > max_) {
      exact_ = false;
      Labels some;
      for (size_t i = 0; i < max_; ++i) some.push_back(kept[i * (kept.size() - 1) / (max_ - 1)]);
      kept = std::move(some);
    }
    labels = std::move(kept);
  }

  void ReadChoice(int node, std::vector<int>& choice) const {
    std::vector<int> open = {node};
    while (!open.empty()) {
      const int number = open.back();
      open.pop_back();
      if (number < 0) continue;
      const Node& derivation = nodes_[number];
      if (derivation.variable >= 0) choice[derivation.variable] = derivation.option;
      open.push_back(derivation.a);
      open.push_back(derivation.b);
    }
  }

  const SumProblem& problem_;
  const EliminationOrder& order_;
  const std::vector<StepTerms> terms_of_;
  const size_t max_;
  int64_t spare_ = 0;
  std::vector<int64_t> min_;
  std::vector<Term<Labels>> terms_;
  std::vector<Node> nodes_;
  int64_t states_ = 0;
  bool exact_ = true;
};

// --- Lagrangian relaxation ---

class PricedSearch {
 public:
  PricedSearch(const SumProblem& problem, const EliminationOrder& order, int64_t max_states,
               const SumSolution& unlimited, ByteLimit& limit)
      : problem_(problem), order_(order), max_states_(max_states), limit_(limit) {
    above_ = unlimited;
    bound_ = unlimited.bound;
    exact_ = unlimited.exact;
    best_ = MinBytesChoice();
    below_ = best_;
    priced_ = problem;
  }

  // Combinations of an entry and an option for which labels would be computed.
  int64_t Work() const {
    int64_t work = 0;
    for (const EliminationStep& step : order_) {
      work += EntriesOf(problem_, step.scope) * problem_.options(step.variable);
    }
    return work;
  }

  std::optional<SumSolution> Run() {
    if (limit_.price > 0) TryPrice(limit_.price);
    for (int round = 0; round < kRounds && bound_ <= limit_.max_sum && !GapClosed(); ++round) {
      // The price at which the choices on either side of the limit cost the same.
      const double price =
          (below_.sum - above_.sum) / std::max<double>(1, above_.bytes - below_.bytes);
      if (price <= 0 || !TryPrice(price)) break;
    }
    if (bound_ > limit_.max_sum) return std::nullopt;
    best_.exact = exact_ && GapClosed();
    best_.bound = std::min(bound_, best_.sum);
    best_.states = states_;
    return best_;
  }

 private:
  static constexpr int kRounds = 8;

  bool GapClosed() const {
    constexpr double kSame = 1e-12;
    return best_.sum - bound_ <= kSame * std::abs(best_.sum);
  }

  // Every variable with its option of minimum memory.
  SumSolution MinBytesChoice() const {
    SumSolution lean;
    for (size_t v = 0; v < problem_.bytes.size(); ++v) {
      int minimum = 0;
      for (int o = 1; o < std::ssize(problem_.bytes[v]); ++o) {
        const auto key = [&](int option) {
          return std::pair(problem_.bytes[v][option], problem_.unary[v][option]);
        };
        if (key(o) < key(minimum)) minimum = o;
      }
      lean.choice.push_back(minimum);
    }
    lean.sum = SumOf(problem_, lean.choice);
    lean.bytes = BytesOf(problem_, lean.choice);
    return lean;
  }

  // Minimises at this price. Returns false if the result was known already.
  bool TryPrice(double price) {
    for (size_t v = 0; v < problem_.unary.size(); ++v) {
      for (size_t o = 0; o < problem_.unary[v].size(); ++o) {
        priced_.unary[v][o] = problem_.unary[v][o] + price * problem_.bytes[v][o];
      }
    }
    SumSolution solution = Minimise(priced_, order_, max_states_);
    states_ += solution.states;
    exact_ = exact_ && solution.exact;
    if (solution.exact) {
      bound_ = std::max(bound_, solution.sum - price * limit_.bytes);
    }
    limit_.price = price;
    solution.sum = SumOf(problem_, solution.choice);
    const bool fits = solution.bytes <= limit_.bytes;
    SumSolution& side = fits ? below_ : above_;
    const bool is_new = solution.bytes != side.bytes || solution.sum != side.sum;
    if (fits && solution.sum < best_.sum) best_ = solution;
    side = std::move(solution);
    return is_new;
  }

  const SumProblem& problem_;
  const EliminationOrder& order_;
  const int64_t max_states_;
  ByteLimit& limit_;
  SumProblem priced_;
  // The best feasible choice, and the last choices below and above the limit.
  SumSolution best_;
  SumSolution below_;
  SumSolution above_;
  double bound_ = 0;
  bool exact_ = true;
  int64_t states_ = 0;
};

}  // namespace

SumSolution Minimise(const SumProblem& problem, const EliminationOrder& order, int64_t max_states) {
  const ReducedProblem reduced(problem, order, max_states);
  SumSolution solution = Eliminator(reduced.problem(), order).Run();
  reduced.Restore(solution);
  // Dropped options may have had any cost.
  solution.bound = solution.exact ? solution.sum : -kInfinite;
  return solution;
}

std::optional<SumSolution> MinimiseWithin(const SumProblem& problem, const EliminationOrder& order,
                                          int64_t max_states, const SumSolution& unlimited,
                                          ByteLimit& limit) {
  if (MinBytes(problem) > limit.bytes) return std::nullopt;
  PricedSearch priced(problem, order, max_states, unlimited, limit);
  std::optional<SumSolution> solution = priced.Run();
  if (!solution.has_value() || solution->exact || priced.Work() > limit.max_work) return solution;
  const ReducedProblem reduced(problem, order, max_states);
  std::optional<SumSolution> pairs =
      LimitedEliminator(reduced.problem(), order, limit.bytes, limit.max_labels).Run();
  if (!pairs.has_value()) return solution;
  reduced.Restore(*pairs);
  pairs->states += solution->states;
  pairs->bound = pairs->exact ? pairs->sum : solution->bound;
  // With thinned labels, the result of the relaxation may be better.
  return pairs->exact || pairs->sum <= solution->sum ? pairs : solution;
}

}  // namespace cadre
