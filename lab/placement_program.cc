// DLPlacer (Pal et al., "Optimizing multi-GPU parallelization strategies for deep learning
// training", IEEE Micro 2019) as a mixed-integer program.
//
// Unknowns: P_kn = 1 if operator k is on device n; x_ij = 1 if operator i ends before j begins on
// one device; y_enm, edge e goes from device n to m; t_k, the start of k; T, the makespan, which is
// minimised. With durations d, transfer times c and memory m:
//
//   sum_n P_kn = 1;   sum_k m_k P_kn <= memory of n
//   sum_m y_enm = P_un,  sum_n y_enm = P_vm                                  for e = (u, v)
//   t_v >= t_u + sum_n d_un P_un + sum_nm c_enm y_enm
//   x_ij + x_ji >= P_in + P_jn - 1;   t_j >= t_i + sum_n d_in P_in - M_ij (1 - x_ij)
//   T >= t_k + sum_n d_kn P_kn
//
// The paper routes each tensor by a flow over links. Neither there nor here do transfers wait for
// one another, so every tensor takes its fastest route, which is computed beforehand (c_enm,
// routes.h). This gives the same optimum with fewer unknowns. Schedules do have contention
// (schedule_builder.h), so the program's optimum is a lower bound, and its placement is scheduled
// anew. Only P and x need to be integral, since y follows from P. The rows
// with x are the disjunctive constraints of job shop scheduling (Manne 1960); their big M makes the
// linear relaxation weak, so the program is tightened:
//
//   windows     Only schedules shorter than a known one are sought. Heads and tails (schedule.h)
//               then bound every start from both sides, which makes every M_ij as small as possible
//               and fixes the order of many pairs, or excludes devices on which an operator is too
//               slow.
//   loads       Operators with head >= r and tail >= q on one device need T >= r + sum of their
//               durations + q (the one-machine bound of Carlier 1982), for up to kMaxLoads sets.
//   symmetry    Of equal devices, the first operators use the first.
//
// Time is scaled so that the known makespan is kScale, far from the solver's tolerances; the
// solution is rescheduled from its order, so the makespan is exact. An infeasible program proves
// that the known schedule is optimal to a millionth, with contention, too. Size: pairs of operators
// times devices plus edges times pairs of devices (ProgramSize); it is tried up to a few thousand.
#include "lab/placement_program.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lab/integer_program.h"

namespace cadre {
namespace {

// The known makespan in the program's unit of time, large compared with the solver's tolerances.
constexpr double kScale = 1000;
constexpr double kShorterBy = 1e-6;
constexpr double kParts = 1e6;
// Maximum number of load rows per device.
constexpr size_t kMaxLoads = 200;

// The unit in which memory is counted: a millionth of the largest device, at least one byte. The
// operators' sizes are rounded up, so the solutions fit.
double MemoryPart(const PlacementProblem& problem) {
  int64_t largest = 1;
  for (const auto& device : problem.devices) largest = std::max(largest, device.memory_bytes);
  return std::max(1.0, std::ceil(largest / kParts));
}

// x_ij and x_ji of a pair; -1: that order is impossible.
struct Orders {
  int forward = -1;
  int backward = -1;
};

class Builder {
 public:
  Builder(const PlacementProblem& problem, const TimeWindows& windows,
          const OperatorSchedule& known)
      : problem_(problem),
        unit_(kScale / known.makespan),
        max_(kScale * (1 - kShorterBy)),
        reaches_(Reaches(problem)) {
    for (size_t i = 0; i < problem.ops.size(); ++i) {
      head_.push_back(windows.head[i] * unit_);
      after_.push_back((windows.tail[i] - problem.ops[i].min_seconds) * unit_);
      latest_finish_.push_back(max_ - after_.back());
    }
    makespan_ = program_.AddVariable(LowerBound(problem, windows) * unit_, max_, 1);
    AddPlacements();
    AddMemory();
    AddStarts();
    AddEdges();
    AddPairs();
    AddLoads();
    BreakSymmetry();
  }

  IntegerProgram& program() { return program_; }
  double unit() const { return unit_; }

  // Orders the operators of a device by their midpoints, which is robust against rounding of the
  // solver and keeps an operator without duration before one that starts at the same time.
  OperatorSchedule ScheduleOf(const std::vector<double>& values) const {
    std::vector<int> device;
    std::vector<double> middle;
    for (size_t i = 0; i < problem_.ops.size(); ++i) {
      int best = 0;
      for (int d = 1; d < problem_.device_count(); ++d) {
        if (values[Placed(i, d)] > values[Placed(i, best)]) best = d;
      }
      device.push_back(best);
      middle.push_back(values[start_[i]] + Duration(i, best) / 2);
    }
    return ScheduleByPriority(problem_, device, middle);
  }

 private:
  int Placed(int op, int device) const { return placed_[op] + device; }
  double Duration(int op, int device) const { return problem_.Seconds(op, device) * unit_; }
  double MinSeconds(int op) const { return problem_.op(op).min_seconds * unit_; }

  // Adds factor * duration of the operator.
  void AppendDuration(int op, double factor, IntegerProgram::Terms& terms) const {
    for (int d = 0; d < problem_.device_count(); ++d) {
      if (Duration(op, d) != 0) terms.push_back({Placed(op, d), factor * Duration(op, d)});
    }
  }

  void AddPlacements() {
    for (int i = 0; i < problem_.size(); ++i) {
      IntegerProgram::Terms one;
      for (int d = 0; d < problem_.device_count(); ++d) {
        const int placed = program_.AddBinary();
        if (d == 0) placed_.push_back(placed);
        one.push_back({placed, 1});
        const bool late = head_[i] + Duration(i, d) > latest_finish_[i];
        const int64_t room = problem_.devices[d].memory_bytes;
        if (late || (room > 0 && problem_.op(i).memory_bytes > room)) {
          program_.AddRow({{placed, 1}}, '=', 0);
        }
      }
      program_.AddRow(one, '=', 1);
    }
  }

  // Memory in whole units: rounding errors could otherwise exclude a sum that fits exactly.
  void AddMemory() {
    const double part = MemoryPart(problem_);
    for (int d = 0; d < problem_.device_count(); ++d) {
      if (!problem_.limited(d)) continue;
      IntegerProgram::Terms load;
      for (int i = 0; i < problem_.size(); ++i) {
        const double parts = std::ceil(problem_.op(i).memory_bytes / part);
        if (parts > 0) load.push_back({Placed(i, d), parts});
      }
      const double room = std::floor(problem_.devices[d].memory_bytes / part);
      if (!load.empty()) program_.AddRow(load, '<', room);
    }
  }

  void AddStarts() {
    for (int i = 0; i < problem_.size(); ++i) {
      const double last = std::max(head_[i], latest_finish_[i] - MinSeconds(i));
      start_.push_back(program_.AddVariable(head_[i], last));
      IntegerProgram::Terms terms = {{makespan_, 1}, {start_.back(), -1}};
      AppendDuration(i, -1, terms);
      program_.AddRow(terms, '>', after_[i]);
    }
  }

  void AddEdges() {
    const int devices = problem_.device_count();
    for (int e = 0; e < std::ssize(problem_.edges); ++e) {
      const PlacementProblem::Edge& edge = problem_.edge(e);
      IntegerProgram::Terms later = {{start_[edge.to], 1}, {start_[edge.from], -1}};
      AppendDuration(edge.from, -1, later);
      double max_seconds = 0;
      for (int n = 0; n < devices; ++n) {
        for (int m = 0; m < devices; ++m) {
          max_seconds = std::max(max_seconds, problem_.TransferSeconds(e, n, m));
        }
      }
      if (max_seconds > 0) AppendFlow(e, later);
      program_.AddRow(later, '>', 0);
    }
  }

  // The pair of devices that the edge connects, and its transfer time.
  void AppendFlow(int e, IntegerProgram::Terms& later) {
    const PlacementProblem::Edge& edge = problem_.edge(e);
    const int devices = problem_.device_count();
    std::vector<IntegerProgram::Terms> leaves(problem_.devices.size());
    std::vector<IntegerProgram::Terms> arrives(problem_.devices.size());
    for (int n = 0; n < devices; ++n) {
      for (int m = 0; m < devices; ++m) {
        const double seconds = problem_.TransferSeconds(e, n, m) * unit_;
        const bool late =
            head_[edge.from] + Duration(edge.from, n) + seconds + Duration(edge.to, m) >
            latest_finish_[edge.to];
        const int joins = program_.AddVariable(0, late ? 0 : 1);
        leaves[n].push_back({joins, 1});
        arrives[m].push_back({joins, 1});
        if (seconds > 0) later.push_back({joins, -seconds});
      }
    }
    for (int d = 0; d < devices; ++d) {
      leaves[d].push_back({Placed(edge.from, d), -1});
      arrives[d].push_back({Placed(edge.to, d), -1});
      program_.AddRow(leaves[d], '=', 0);
      program_.AddRow(arrives[d], '=', 0);
    }
  }

  bool CanPrecede(int i, int j) const {
    return head_[i] + MinSeconds(i) + MinSeconds(j) <= latest_finish_[j];
  }

  // A row that is active if `order` is 1: j starts after i ends.
  int AddOrder(int i, int j) {
    const int order = program_.AddBinary();
    const double big = latest_finish_[i] - head_[j];
    IntegerProgram::Terms terms = {{start_[j], 1}, {start_[i], -1}, {order, -big}};
    AppendDuration(i, -1, terms);
    program_.AddRow(terms, '>', -big);
    return order;
  }

  void AddPairs() {
    for (int i = 0; i < problem_.size(); ++i) {
      for (int j = i + 1; j < problem_.size(); ++j) {
        const bool ordered = reaches_[i][j] || reaches_[j][i];
        const bool apart = latest_finish_[i] <= head_[j] || latest_finish_[j] <= head_[i];
        const bool instant = problem_.op(i).mean == 0 && problem_.op(j).mean == 0;
        if (!ordered && !apart && !instant) AddPair(i, j);
      }
    }
  }

  void AddPair(int i, int j) {
    const Orders orders{.forward = CanPrecede(i, j) ? AddOrder(i, j) : -1,
                        .backward = CanPrecede(j, i) ? AddOrder(j, i) : -1};
    IntegerProgram::Terms either;
    if (orders.forward >= 0) either.push_back({orders.forward, 1});
    if (orders.backward >= 0) either.push_back({orders.backward, 1});
    if (either.size() == 2) program_.AddRow(either, '<', 1);
    for (int d = 0; d < problem_.device_count(); ++d) {
      IntegerProgram::Terms terms = either;
      terms.push_back({Placed(i, d), -1});
      terms.push_back({Placed(j, d), -1});
      program_.AddRow(terms, '>', -1);
    }
  }

  // Operators with head >= r and tail >= q on one device: T >= r + their total duration + q.
  void AddLoads() {
    std::map<std::set<int>, double> loads;
    std::set<double> heads(head_.begin(), head_.end());
    std::set<double> tails(after_.begin(), after_.end());
    for (const double r : heads) {
      for (const double q : tails) {
        std::set<int> ops;
        for (int i = 0; i < problem_.size(); ++i) {
          if (head_[i] >= r && after_[i] >= q) ops.insert(i);
        }
        if (ops.size() < 2) continue;
        double& load = loads[ops];
        load = std::max(load, r + q);
        if (loads.size() >= kMaxLoads) break;
      }
    }
    for (const auto& [ops, around] : loads) {
      for (int d = 0; d < problem_.device_count(); ++d) {
        IntegerProgram::Terms terms = {{makespan_, 1}};
        for (const int i : ops) {
          if (Duration(i, d) > 0) terms.push_back({Placed(i, d), -Duration(i, d)});
        }
        if (terms.size() > 2) program_.AddRow(terms, '>', around);
      }
    }
  }

  bool AreEqual(int a, int b) const {
    const auto& devices = problem_.devices;
    if (devices[a].memory_bytes != devices[b].memory_bytes) {
      return false;
    }
    for (int c = 0; c < problem_.device_count(); ++c) {
      if (c != a && c != b && !problem_.routes.SameRoutes(a, b, c)) return false;
    }
    return std::all_of(problem_.ops.begin(), problem_.ops.end(),
                       [&](const auto& op) { return op.seconds[a] == op.seconds[b]; });
  }

  // The second of two equal devices has an operator only if an earlier operator is on the first.
  void BreakSymmetry() {
    for (int b = 1; b < problem_.device_count(); ++b) {
      int a = b - 1;
      while (a >= 0 && !AreEqual(a, b)) --a;
      if (a < 0) continue;
      IntegerProgram::Terms before;
      for (int i = 0; i < problem_.size(); ++i) {
        IntegerProgram::Terms terms = before;
        terms.push_back({Placed(i, b), -1});
        program_.AddRow(terms, '>', 0);
        before.push_back({Placed(i, a), 1});
      }
    }
  }

  const PlacementProblem& problem_;
  const double unit_;
  // An upper bound on the makespan, just below the known one.
  const double max_;
  const std::vector<std::vector<bool>> reaches_;
  // By operator: earliest start, minimum time after its end, and the resulting latest end.
  std::vector<double> head_;
  std::vector<double> after_;
  std::vector<double> latest_finish_;
  IntegerProgram program_;
  int makespan_ = 0;
  std::vector<int> placed_;
  std::vector<int> start_;
};

// Pairs of operators times devices, plus edges times pairs of devices.
int64_t ProgramSize(const PlacementProblem& problem) {
  const int64_t n = problem.size();
  const int64_t devices = problem.device_count();
  return n * (n - 1) / 2 * devices + std::ssize(problem.edges) * devices * devices;
}

}  // namespace

absl::StatusOr<std::vector<int>> PlacementProgram::Pack(const PlacementProblem& problem) const {
  const double part = MemoryPart(problem);
  IntegerProgram program;
  std::vector<IntegerProgram::Terms> loads(problem.devices.size());
  for (const PlacementProblem::Operator& op : problem.ops) {
    IntegerProgram::Terms one;
    for (size_t d = 0; d < problem.devices.size(); ++d) {
      const int placed = program.AddBinary();
      one.push_back({placed, 1});
      loads[d].push_back({placed, std::ceil(op.memory_bytes / part)});
    }
    program.AddRow(one, '=', 1);
  }
  for (size_t d = 0; d < problem.devices.size(); ++d) {
    if (!problem.limited(d)) continue;
    program.AddRow(loads[d], '<', std::floor(problem.devices[d].memory_bytes / part));
  }
  const IntegerProgram::Answer answer = program.Minimise(options_.seconds);
  if (answer.outcome == IntegerProgram::Outcome::kInfeasible) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "no placement fits: no assignment of the operators keeps every device within its "
        "memory_bytes",
        part > 1 ? absl::StrCat(" (counted in units of ", part, " bytes)") : ""));
  }
  if (answer.values.empty()) {
    return absl::DeadlineExceededError(
        absl::StrCat("no placement that fits into memory was found in ", options_.seconds,
                     " seconds; allow more, or give the devices more memory_bytes"));
  }
  std::vector<int> packing;
  for (size_t i = 0; i < problem.ops.size(); ++i) {
    const auto begin = answer.values.begin() + (i * problem.devices.size());
    packing.push_back(std::max_element(begin, begin + problem.devices.size()) - begin);
  }
  return packing;
}

std::optional<PlacementSolver::Result> PlacementProgram::Improve(
    const PlacementProblem& problem, const TimeWindows& windows,
    const OperatorSchedule& known) const {
  if (ProgramSize(problem) > options_.max_size) return std::nullopt;
  Builder builder(problem, windows, known);
  const IntegerProgram::Answer solved = builder.program().Minimise(options_.seconds);
  Result answer{.solved = solved.outcome != IntegerProgram::Outcome::kStopped};
  if (solved.outcome == IntegerProgram::Outcome::kInfeasible) {
    answer.lower_bound = known.makespan * (1 - kShorterBy);
    return answer;
  }
  answer.lower_bound = std::max(0.0, solved.bound / builder.unit());
  if (solved.values.empty()) return answer;
  OperatorSchedule schedule = builder.ScheduleOf(solved.values);
  if (FitsMemory(problem, schedule.device) && schedule.makespan < known.makespan) {
    answer.schedule = std::move(schedule);
  }
  return answer;
}

}  // namespace cadre
