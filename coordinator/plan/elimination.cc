#include "coordinator/plan/elimination.h"

#include <glog/logging.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

namespace cadre {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();

size_t At(int i) { return static_cast<size_t>(i); }

// A term of some variables: entry by entry, the last variable's option running fastest.
template <typename Entry>
struct Term {
  std::vector<int> scope;
  std::vector<Entry> entries;
};

// How far entries lie apart for options of one variable; 0 where it is not in the scope.
template <typename Entry>
size_t StrideOf(const SumProblem& problem, const Term<Entry>& term, int variable) {
  size_t stride = 1;
  for (auto v = term.scope.rbegin(); v != term.scope.rend(); ++v) {
    if (*v == variable) return stride;
    stride *= problem.options(*v);
  }
  return 0;
}

int64_t EntriesOf(const SumProblem& problem, const std::vector<int>& scope) {
  int64_t entries = 1;
  for (const int v : scope) entries *= static_cast<int64_t>(problem.options(v));
  return entries;
}

// Goes through all options of the variables in a scope, keeping for each of some terms where it
// stands.
class Odometer {
 public:
  // strides[t][s]: of term t for the scope's variable s.
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

template <typename Entry>
std::vector<std::vector<size_t>> StridesOf(const SumProblem& problem,
                                           const std::vector<const Term<Entry>*>& terms,
                                           const std::vector<int>& scope) {
  std::vector<std::vector<size_t>> strides;
  for (const Term<Entry>* term : terms) {
    strides.emplace_back();
    for (const int v : scope) strides.back().push_back(StrideOf(problem, *term, v));
  }
  return strides;
}

// The pairs and the new terms that a step takes: those of its variable that no step before took.
struct Taken {
  std::vector<int> pairs;
  // Steps whose terms are taken.
  std::vector<int> terms;
};

std::vector<Taken> TakenBy(const SumProblem& problem, const EliminationOrder& order) {
  std::vector<int> when(At(problem.size()));
  const auto steps = static_cast<int>(order.steps().size());
  for (int s = 0; s < steps; ++s) when[At(order.steps()[At(s)].variable)] = s;
  std::vector<Taken> taken(At(steps));
  for (size_t p = 0; p < problem.pairs.size(); ++p) {
    const int first = std::min(when[At(problem.pairs[p].a)], when[At(problem.pairs[p].b)]);
    taken[At(first)].pairs.push_back(static_cast<int>(p));
  }
  for (int s = 0; s < steps; ++s) {
    int first = steps;
    for (const int v : order.steps()[At(s)].scope) first = std::min(first, when[At(v)]);
    if (first < steps) taken[At(first)].terms.push_back(s);
  }
  return taken;
}

// --- One sum ---

class Eliminator {
 public:
  Eliminator(const SumProblem& problem, const EliminationOrder& order)
      : problem_(problem), order_(order), taken_(TakenBy(problem, order)) {}

  SumAnswer Run() {
    terms_.resize(order_.steps().size());
    best_.resize(order_.steps().size());
    for (size_t s = 0; s < order_.steps().size(); ++s) Eliminate(s);
    SumAnswer answer{.choice = std::vector<int>(At(problem_.size()), 0)};
    for (size_t s = order_.steps().size(); s-- > 0;) Look(s, answer.choice);
    for (const std::vector<uint16_t>& of : best_) {
      answer.states += static_cast<int64_t>(of.size());
    }
    answer.sum = SumOf(problem_, answer.choice);
    if (!problem_.bytes.empty()) answer.bytes = BytesOf(problem_, answer.choice);
    return answer;
  }

 private:
  struct Source {
    const double* values = nullptr;
    size_t stride = 0;
  };

  void Eliminate(size_t s) {
    const auto& [variable, scope] = order_.steps()[s];
    // Pairs are terms as well.
    std::vector<Source> sources;
    std::vector<std::vector<size_t>> strides;
    const auto add = [&](const std::vector<int>& of, const double* values) {
      const Term<double> shape{of, {}};
      sources.push_back({values, StrideOf(problem_, shape, variable)});
      strides.emplace_back();
      for (const int v : scope) strides.back().push_back(StrideOf(problem_, shape, v));
    };
    for (const int p : taken_[s].pairs) {
      const SumProblem::Pair& pair = problem_.pairs[At(p)];
      add({pair.a, pair.b}, pair.table->data());
    }
    for (const int t : taken_[s].terms) add(terms_[At(t)].scope, terms_[At(t)].entries.data());

    const std::vector<double>& own = problem_.unary[At(variable)];
    const auto entries = static_cast<size_t>(EntriesOf(problem_, scope));
    terms_[s] = {scope, std::vector<double>(entries)};
    best_[s].resize(entries);
    Odometer odometer(problem_, scope, std::move(strides));
    sums_.resize(own.size());
    for (size_t e = 0; e < entries; ++e, odometer.Next()) {
      std::copy(own.begin(), own.end(), sums_.begin());
      for (size_t t = 0; t < sources.size(); ++t) {
        Add(sources[t].values + odometer.offset(t), sources[t].stride);
      }
      const auto least = std::min_element(sums_.begin(), sums_.end());
      terms_[s].entries[e] = *least;
      best_[s][e] = static_cast<uint16_t>(least - sums_.begin());
    }
    for (const int t : taken_[s].terms) terms_[At(t)].entries = {};
  }

  void Add(const double* values, size_t stride) {
    if (stride == 1) {
      for (size_t o = 0; o < sums_.size(); ++o) sums_[o] += values[o];
    } else {
      for (size_t o = 0; o < sums_.size(); ++o) sums_[o] += values[o * stride];
    }
  }

  // The choice of the step's variable, those of its scope being made.
  void Look(size_t s, std::vector<int>& choice) const {
    const auto& [variable, scope] = order_.steps()[s];
    size_t at = 0;
    for (const int v : scope) at = at * problem_.options(v) + At(choice[At(v)]);
    choice[At(variable)] = best_[s][at];
  }

  const SumProblem& problem_;
  const EliminationOrder& order_;
  const std::vector<Taken> taken_;
  std::vector<Term<double>> terms_;
  std::vector<std::vector<uint16_t>> best_;
  std::vector<double> sums_;
};

// --- Two sums ---

// A pair of sums, and how it came about: a choice of one variable on top of another pair, or two
// pairs of separate variables together.
struct Label {
  double sum = 0;
  int64_t bytes = 0;
  int node = -1;
  // Before the label is kept, what it is made of besides `node`: an option, or another node.
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
                    size_t most_labels)
      : problem_(problem), order_(order), taken_(TakenBy(problem, order)), most_(most_labels) {
    // Bytes are counted beyond the least that each variable needs, so that what does not fit is
    // seen at once.
    spare_ = limit - LeastBytes(problem);
    for (const std::vector<int64_t>& bytes : problem.bytes) {
      least_.push_back(*std::min_element(bytes.begin(), bytes.end()));
    }
  }

  std::optional<SumAnswer> Run() {
    if (spare_ < 0) return std::nullopt;
    terms_.resize(order_.steps().size());
    for (size_t s = 0; s < order_.steps().size(); ++s) Eliminate(s);
    Labels all = {{0, 0, -1}};
    for (size_t s = 0; s < order_.steps().size(); ++s) {
      if (order_.steps()[s].scope.empty()) all = Together(all, terms_[s].entries[0]);
    }
    if (all.empty()) return std::nullopt;
    const Label best = *std::min_element(
        all.begin(), all.end(), [](const Label& a, const Label& b) { return a.sum < b.sum; });
    SumAnswer answer{.choice = std::vector<int>(At(problem_.size()), 0), .exact = exact_};
    Collect(best.node, answer.choice);
    answer.sum = SumOf(problem_, answer.choice);
    answer.bytes = BytesOf(problem_, answer.choice);
    answer.states = states_;
    return answer;
  }

 private:
  void Eliminate(size_t s) {
    const auto& [variable, scope] = order_.steps()[s];
    std::vector<Term<double>> pairs;
    for (const int p : taken_[s].pairs) {
      pairs.push_back({{problem_.pairs[At(p)].a, problem_.pairs[At(p)].b}, {}});
    }
    std::vector<const Term<double>*> pair_terms;
    for (const Term<double>& term : pairs) pair_terms.push_back(&term);
    std::vector<const Term<Labels>*> label_terms;
    for (const int t : taken_[s].terms) label_terms.push_back(&terms_[At(t)]);

    std::vector<std::vector<size_t>> strides = StridesOf(problem_, pair_terms, scope);
    for (auto& each : StridesOf(problem_, label_terms, scope)) strides.push_back(std::move(each));
    Odometer odometer(problem_, scope, std::move(strides));
    const auto entries = static_cast<size_t>(EntriesOf(problem_, scope));
    terms_[s] = {scope, std::vector<Labels>(entries)};
    for (size_t e = 0; e < entries; ++e, odometer.Next()) {
      Labels& into = terms_[s].entries[e];
      for (size_t o = 0; o < problem_.options(variable); ++o) {
        double sum = problem_.unary[At(variable)][o];
        for (size_t t = 0; t < pairs.size(); ++t) {
          const size_t at = odometer.offset(t) + o * StrideOf(problem_, pairs[t], variable);
          sum += (*problem_.pairs[At(taken_[s].pairs[t])].table)[at];
        }
        const int64_t bytes = problem_.bytes[At(variable)][o] - least_[At(variable)];
        Labels labels = {{0, 0, -1}};
        for (size_t t = 0; t < label_terms.size(); ++t) {
          const size_t at =
              odometer.offset(pairs.size() + t) + o * StrideOf(problem_, *label_terms[t], variable);
          labels = Together(labels, label_terms[t]->entries[at]);
        }
        for (const Label& label : labels) {
          if (label.bytes + bytes > spare_) continue;
          into.push_back({label.sum + sum, label.bytes + bytes, label.node, static_cast<int>(o)});
        }
      }
      KeepBest(into);
      for (Label& label : into) NewNode(label, {variable, label.other, label.node, -1});
      states_ += static_cast<int64_t>(into.size());
    }
    for (const int t : taken_[s].terms) terms_[At(t)].entries = {};
  }

  Labels Together(const Labels& a, const Labels& b) {
    if (a.size() == 1 && a[0].node < 0) return b;
    Labels labels;
    for (const Label& x : a) {
      for (const Label& y : b) {
        if (x.bytes + y.bytes > spare_) continue;
        labels.push_back({x.sum + y.sum, x.bytes + y.bytes, x.node, y.node});
      }
    }
    KeepBest(labels);
    for (Label& label : labels) NewNode(label, {-1, 0, label.node, label.other});
    return labels;
  }

  void NewNode(Label& label, const Node& node) {
    nodes_.push_back(node);
    label.node = static_cast<int>(nodes_.size()) - 1;
  }

  // Those that no other beats in both sums; of too many, every so manyeth.
  void KeepBest(Labels& labels) {
    std::sort(labels.begin(), labels.end(), [](const Label& a, const Label& b) {
      return a.sum != b.sum ? a.sum < b.sum : a.bytes < b.bytes;
    });
    int64_t least = std::numeric_limits<int64_t>::max();
    Labels kept;
    for (const Label& label : labels) {
      if (label.bytes >= least) continue;
      least = label.bytes;
      kept.push_back(label);
    }
    if (kept.size() > most_) {
      exact_ = false;
      Labels some;
      for (size_t i = 0; i < most_; ++i) some.push_back(kept[i * (kept.size() - 1) / (most_ - 1)]);
      kept = std::move(some);
    }
    labels = std::move(kept);
  }

  void Collect(int node, std::vector<int>& choice) const {
    std::vector<int> open = {node};
    while (!open.empty()) {
      const int at = open.back();
      open.pop_back();
      if (at < 0) continue;
      const Node& of = nodes_[At(at)];
      if (of.variable >= 0) choice[At(of.variable)] = of.option;
      open.push_back(of.a);
      open.push_back(of.b);
    }
  }

  const SumProblem& problem_;
  const EliminationOrder& order_;
  const std::vector<Taken> taken_;
  const size_t most_;
  int64_t spare_ = 0;
  std::vector<int64_t> least_;
  std::vector<Term<Labels>> terms_;
  std::vector<Node> nodes_;
  int64_t states_ = 0;
  bool exact_ = true;
};

// --- Too many states ---

// The problem with fewer options: of some variables, those that may come to least by themselves.
class Reduced {
 public:
  Reduced(const SumProblem& problem, const EliminationOrder& order, int64_t most_states)
      : full_(problem) {
    const bool fits = std::all_of(order.steps().begin(), order.steps().end(), [&](const auto& s) {
      return EntriesOf(problem, s.scope) <= most_states;
    });
    if (fits) return;
    for (int v = 0; v < problem.size(); ++v) {
      kept_.emplace_back();
      for (size_t o = 0; o < problem.options(v); ++o) kept_.back().push_back(static_cast<int>(o));
    }
    for (const EliminationOrder::Step& step : order.steps()) {
      while (Entries(step.scope) > most_states) DropOneOf(step.scope);
    }
    if (changed_) Build();
  }

  bool changed() const { return changed_; }
  const SumProblem& problem() const { return changed_ ? reduced_ : full_; }

  void Restore(SumAnswer& answer) const {
    if (!changed_) return;
    answer.exact = false;
    for (size_t v = 0; v < kept_.size(); ++v) {
      answer.choice[v] = kept_[v][At(answer.choice[v])];
    }
  }

 private:
  int64_t Entries(const std::vector<int>& scope) const {
    int64_t entries = 1;
    for (const int v : scope) entries *= static_cast<int64_t>(kept_[At(v)].size());
    return entries;
  }

  double Promise(int v, int option) const {
    double sum = full_.unary[At(v)][At(option)];
    for (const SumProblem::Pair& pair : full_.pairs) {
      if (pair.a != v && pair.b != v) continue;
      const int other = pair.a == v ? pair.b : pair.a;
      double least = kInfinite;
      for (size_t o = 0; o < full_.options(other); ++o) {
        const size_t at =
            pair.a == v ? At(option) * full_.options(other) + o : o * full_.options(v) + At(option);
        least = std::min(least, (*pair.table)[at]);
      }
      sum += least;
    }
    return sum;
  }

  void DropOneOf(const std::vector<int>& scope) {
    changed_ = true;
    const int v = *std::max_element(scope.begin(), scope.end(), [&](int a, int b) {
      return kept_[At(a)].size() < kept_[At(b)].size();
    });
    std::vector<int>& kept = kept_[At(v)];
    CHECK_GT(kept.size(), 1U);
    // What takes least memory stays, so that what can fit still can.
    const auto leanest = full_.bytes.empty()
                             ? kept.end()
                             : std::min_element(kept.begin(), kept.end(), [&](int a, int b) {
                                 return full_.bytes[At(v)][At(a)] < full_.bytes[At(v)][At(b)];
                               });
    auto worst = kept.end();
    double most = -kInfinite;
    for (auto o = kept.begin(); o != kept.end(); ++o) {
      const double promise = Promise(v, *o);
      if (o == leanest || promise < most) continue;
      most = promise;
      worst = o;
    }
    kept.erase(worst);
  }

  void Build() {
    for (int v = 0; v < full_.size(); ++v) {
      reduced_.unary.emplace_back();
      for (const int o : kept_[At(v)]) reduced_.unary.back().push_back(full_.unary[At(v)][At(o)]);
      if (full_.bytes.empty()) continue;
      reduced_.bytes.emplace_back();
      for (const int o : kept_[At(v)]) reduced_.bytes.back().push_back(full_.bytes[At(v)][At(o)]);
    }
    tables_.reserve(full_.pairs.size());
    for (const SumProblem::Pair& pair : full_.pairs) {
      tables_.emplace_back();
      for (const int a : kept_[At(pair.a)]) {
        for (const int b : kept_[At(pair.b)]) {
          tables_.back().push_back((*pair.table)[At(a) * full_.options(pair.b) + At(b)]);
        }
      }
      reduced_.pairs.push_back({pair.a, pair.b, &tables_.back()});
    }
  }

  const SumProblem& full_;
  std::vector<std::vector<int>> kept_;
  bool changed_ = false;
  SumProblem reduced_;
  std::vector<std::vector<double>> tables_;
};

// --- A price on bytes ---

class PricedSearch {
 public:
  PricedSearch(const SumProblem& problem, const EliminationOrder& order, int64_t most_states,
               const SumAnswer& free, ByteLimit& limit)
      : problem_(problem), order_(order), most_states_(most_states), limit_(limit) {
    above_ = free;
    bound_ = free.bound;
    exact_ = free.exact;
    best_ = Leanest();
    below_ = best_;
    priced_ = problem;
  }

  // Combinations of an entry and an option, which pairs of sums would be noted for.
  int64_t Work() const {
    int64_t work = 0;
    for (const EliminationOrder::Step& step : order_.steps()) {
      work +=
          EntriesOf(problem_, step.scope) * static_cast<int64_t>(problem_.options(step.variable));
    }
    return work;
  }

  std::optional<SumAnswer> Run() {
    if (limit_.price > 0) Try(limit_.price);
    for (int round = 0; round < kRounds && bound_ <= limit_.worth && !Closed(); ++round) {
      // Where both answers that are next to the limit cost the same.
      const double price = (below_.sum - above_.sum) /
                           std::max(1.0, static_cast<double>(above_.bytes - below_.bytes));
      if (price <= 0 || !Try(price)) break;
    }
    if (bound_ > limit_.worth) return std::nullopt;
    best_.exact = exact_ && Closed();
    best_.bound = std::min(bound_, best_.sum);
    best_.states = states_;
    return best_;
  }

 private:
  static constexpr int kRounds = 8;

  bool Closed() const {
    constexpr double kSame = 1e-12;
    return best_.sum - bound_ <= kSame * std::abs(best_.sum);
  }

  // Every variable for itself as lean as it can be.
  SumAnswer Leanest() const {
    SumAnswer lean;
    for (size_t v = 0; v < problem_.bytes.size(); ++v) {
      int least = 0;
      for (int o = 1; o < static_cast<int>(problem_.bytes[v].size()); ++o) {
        const auto key = [&](int option) {
          return std::pair(problem_.bytes[v][At(option)], problem_.unary[v][At(option)]);
        };
        if (key(o) < key(least)) least = o;
      }
      lean.choice.push_back(least);
    }
    lean.sum = SumOf(problem_, lean.choice);
    lean.bytes = BytesOf(problem_, lean.choice);
    return lean;
  }

  // False if it found nothing new.
  bool Try(double price) {
    for (size_t v = 0; v < problem_.unary.size(); ++v) {
      for (size_t o = 0; o < problem_.unary[v].size(); ++o) {
        priced_.unary[v][o] =
            problem_.unary[v][o] + price * static_cast<double>(problem_.bytes[v][o]);
      }
    }
    SumAnswer answer = Minimise(priced_, order_, most_states_);
    states_ += answer.states;
    exact_ = exact_ && answer.exact;
    if (answer.exact) {
      bound_ = std::max(bound_, answer.sum - price * static_cast<double>(limit_.bytes));
    }
    limit_.price = price;
    answer.sum = SumOf(problem_, answer.choice);
    const bool fits = answer.bytes <= limit_.bytes;
    SumAnswer& side = fits ? below_ : above_;
    const bool is_new = answer.bytes != side.bytes || answer.sum != side.sum;
    if (fits && answer.sum < best_.sum) best_ = answer;
    side = std::move(answer);
    return is_new;
  }

  const SumProblem& problem_;
  const EliminationOrder& order_;
  const int64_t most_states_;
  ByteLimit& limit_;
  SumProblem priced_;
  // The best so far, and the answers on either side of the limit.
  SumAnswer best_;
  SumAnswer below_;
  SumAnswer above_;
  double bound_ = 0;
  bool exact_ = true;
  int64_t states_ = 0;
};

}  // namespace

EliminationOrder::EliminationOrder(int variables, const std::vector<std::pair<int, int>>& pairs) {
  std::vector<std::set<int>> neighbours(At(variables));
  for (const auto& [a, b] : pairs) {
    if (a == b) continue;
    neighbours[At(a)].insert(b);
    neighbours[At(b)].insert(a);
  }
  std::set<std::pair<size_t, int>> open;
  for (int v = 0; v < variables; ++v) open.insert({neighbours[At(v)].size(), v});
  while (!open.empty()) {
    const int v = open.begin()->second;
    open.erase(open.begin());
    const std::set<int> scope = std::move(neighbours[At(v)]);
    for (const int n : scope) {
      open.erase({neighbours[At(n)].size(), n});
      neighbours[At(n)].erase(v);
      for (const int m : scope) {
        if (m != n) neighbours[At(n)].insert(m);
      }
      open.insert({neighbours[At(n)].size(), n});
    }
    steps_.push_back({v, {scope.begin(), scope.end()}});
  }
  // Whose turn is next runs fastest, so that its step goes through terms from front to back.
  std::vector<int> when(At(variables));
  for (size_t s = 0; s < steps_.size(); ++s) when[At(steps_[s].variable)] = static_cast<int>(s);
  for (Step& step : steps_) {
    std::sort(step.scope.begin(), step.scope.end(),
              [&](int a, int b) { return when[At(a)] > when[At(b)]; });
  }
}

SumAnswer Minimise(const SumProblem& problem, const EliminationOrder& order, int64_t most_states) {
  const Reduced reduced(problem, order, most_states);
  SumAnswer answer = Eliminator(reduced.problem(), order).Run();
  reduced.Restore(answer);
  // What was left out might be anything.
  answer.bound = answer.exact ? answer.sum : -kInfinite;
  return answer;
}

std::optional<SumAnswer> MinimiseWithin(const SumProblem& problem, const EliminationOrder& order,
                                        int64_t most_states, const SumAnswer& free,
                                        ByteLimit& limit) {
  if (LeastBytes(problem) > limit.bytes) return std::nullopt;
  PricedSearch priced(problem, order, most_states, free, limit);
  std::optional<SumAnswer> answer = priced.Run();
  if (!answer.has_value() || answer->exact || priced.Work() > limit.most_work) return answer;
  const Reduced reduced(problem, order, most_states);
  std::optional<SumAnswer> pairs =
      LimitedEliminator(reduced.problem(), order, limit.bytes, limit.most_labels).Run();
  if (!pairs.has_value()) return answer;
  reduced.Restore(*pairs);
  pairs->states += answer->states;
  pairs->bound = pairs->exact ? pairs->sum : answer->bound;
  // Where pairs were left out, what the price found may be better.
  return pairs->exact || pairs->sum <= answer->sum ? pairs : answer;
}

double SumOf(const SumProblem& problem, std::span<const int> choice) {
  double sum = 0;
  for (size_t v = 0; v < problem.unary.size(); ++v) sum += problem.unary[v][At(choice[v])];
  for (const SumProblem::Pair& pair : problem.pairs) {
    sum += (*pair.table)[At(choice[At(pair.a)]) * problem.options(pair.b) + At(choice[At(pair.b)])];
  }
  return sum;
}

int64_t BytesOf(const SumProblem& problem, std::span<const int> choice) {
  int64_t bytes = 0;
  for (size_t v = 0; v < problem.bytes.size(); ++v) bytes += problem.bytes[v][At(choice[v])];
  return bytes;
}

int64_t LeastBytes(const SumProblem& problem) {
  int64_t sum = 0;
  for (const std::vector<int64_t>& bytes : problem.bytes) {
    sum += *std::min_element(bytes.begin(), bytes.end());
  }
  return sum;
}

}  // namespace cadre
