#include "tests/plan/placement/random_graph.h"

#include <algorithm>
#include <random>
#include <string>

#include "absl/strings/str_cat.h"

namespace cadre::testing {
namespace {

class Maker {
 public:
  Maker(uint64_t seed, const RandomGraphOptions& options) : random_(seed), options_(options) {}

  v1::OperatorGraph Make() {
    const int devices = Between(2, options_.max_devices);
    for (int d = 0; d < devices; ++d) graph_.add_device()->set_name(absl::StrCat("d", d));
    AddOperators();
    AddEdges();
    AddLinks();
    if (Chance(3)) AddMemory();
    return graph_;
  }

 private:
  // Not uniform_int_distribution, whose results depend on the standard library.
  int Between(int min, int max) {
    const int64_t offset = random_() % (max - min + 1);
    return min + offset;
  }
  // True with probability 1 / times.
  bool Chance(int times) { return Between(1, times) == 1; }

  void AddOperators() {
    const bool unlike = Chance(3);
    const int ops = Between(options_.min_ops, options_.max_ops);
    for (int i = 0; i < ops; ++i) {
      v1::Operator& op = *graph_.add_op();
      op.set_name(absl::StrCat("op", i));
      op.set_seconds(Chance(8) ? 0 : Between(1, 10));
      if (unlike && Chance(2)) {
        v1::OperatorTime& on = *op.add_on();
        on.set_device(graph_.device(Between(0, graph_.device_size() - 1)).name());
        on.set_seconds(Between(1, 12));
      }
    }
  }

  // Edges follow an order of operators that differs from the order of their names.
  void AddEdges() {
    const int density = Between(2, 5);
    const int ops = graph_.op_size();
    const int step = ops % 3 == 0 ? 1 : 3;
    const auto name = [&](int i) { return graph_.op(i * step % ops).name(); };
    for (int from = 0; from < ops; ++from) {
      for (int to = from + 1; to < ops; ++to) {
        if (!Chance(density)) continue;
        v1::OperatorEdge& edge = *graph_.add_edge();
        edge.set_from(name(from));
        edge.set_to(name(to));
        edge.set_bytes(Chance(6) ? 0 : Between(1, 12));
      }
    }
  }

  void AddLink(const std::string& from, const std::string& to) {
    v1::PlacementLink& link = *graph_.add_link();
    link.set_from(from);
    link.set_to(to);
    link.set_alpha(Chance(2) ? 0 : 0.5 * Between(1, 4));
    link.set_bandwidth(1 << Between(0, 3));
  }

  void AddLinks() {
    const int devices = graph_.device_size();
    const auto name = [&](int d) { return graph_.device(d).name(); };
    switch (Between(0, 3)) {
      case 0:  // every pair
        for (int a = 0; a < devices; ++a) {
          for (int b = a + 1; b < devices; ++b) AddLink(name(a), name(b));
        }
        break;
      case 1:  // a row
        for (int d = 1; d < devices; ++d) AddLink(name(d - 1), name(d));
        break;
      case 2:  // a star
        graph_.add_switch_("s0");
        for (int d = 0; d < devices; ++d) AddLink(name(d), "s0");
        break;
      default:  // two switches, and a route around them
        graph_.add_switch_("s0");
        graph_.add_switch_("s1");
        AddLink("s0", "s1");
        for (int d = 0; d < devices; ++d) AddLink(name(d), d == 0 ? "s0" : "s1");
        AddLink(name(0), name(devices - 1));
    }
  }

  void AddMemory() {
    uint64_t all = 0;
    for (v1::Operator& op : *graph_.mutable_op()) {
      op.set_memory_bytes(Between(0, 9));
      all += op.memory_bytes();
    }
    const uint64_t devices = graph_.device_size();
    for (v1::PlacementDevice& device : *graph_.mutable_device()) {
      if (Chance(8)) continue;
      device.set_memory_bytes(std::max<uint64_t>(1, all / devices + Between(0, 3)));
    }
  }

  std::mt19937_64 random_;
  const RandomGraphOptions& options_;
  v1::OperatorGraph graph_;
};

}  // namespace

v1::OperatorGraph RandomGraph(uint64_t seed, const RandomGraphOptions& options) {
  return Maker(seed, options).Make();
}

}  // namespace cadre::testing
