// A mixed-integer linear program, and COIN-OR CBC to solve it.
//
//   IntegerProgram program;
//   const int x = program.AddBinary();
//   program.AddRow({{x, 3.0}, {y, 1.0}}, '<', 4);
//   const auto answer = program.Minimise(/*seconds=*/10);
//
// Thread-compatible; CBC has global state, so a process must minimise one program at a time.
// Writes nothing to stdout or stderr.
#pragma once

#include <memory>
#include <utility>
#include <vector>

namespace cadre {

class IntegerProgram {
 public:
  // Variable and factor.
  using Terms = std::vector<std::pair<int, double>>;

  enum class Outcome {
    kOptimal,
    // No values satisfy all rows.
    kInfeasible,
    // Time limit; values, if any, are the best found.
    kStopped,
  };
  struct Answer {
    Outcome outcome = Outcome::kStopped;
    // By variable; empty: none found.
    std::vector<double> values;
    // A lower bound on the cost; minus infinity: unknown.
    double bound = 0;
  };

  IntegerProgram();
  ~IntegerProgram();

  // Return the variable's number. `cost` is its coefficient in the objective.
  int AddVariable(double lower, double upper, double cost = 0);
  int AddBinary(double cost = 0);

  // `relation` is '<' (at most), '>' (at least) or '='. Requires: each variable at most once.
  void AddRow(const Terms& terms, char relation, double right);

  // May be called once. Deterministic unless the limit of `seconds` is reached. Requires: at least
  // one binary.
  Answer Minimise(double seconds);

 private:
  struct Model;
  std::unique_ptr<Model> model_;
};

}  // namespace cadre
