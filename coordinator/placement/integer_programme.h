// A mixed-integer linear programme, and COIN-OR CBC to solve it.
//
//   IntegerProgramme programme;
//   const int x = programme.AddBinary();
//   programme.AddRow({{x, 3.0}, {y, 1.0}}, '<', 4);
//   const auto answer = programme.Minimise({.seconds = 10});
//
// Thread-compatible; CBC keeps state of its own, so a process minimises one programme at a time.
// Writes nothing to stdout or stderr.
#pragma once

#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace cadre {

class IntegerProgramme {
 public:
  // Variable and factor.
  using Terms = std::vector<std::pair<int, double>>;

  enum class Outcome {
    kOptimal,
    // No values fulfil all rows.
    kInfeasible,
    // Out of time; values, if any, are the best found.
    kStopped,
  };
  struct Answer {
    Outcome outcome = Outcome::kStopped;
    // By variable; empty: none found.
    std::vector<double> values;
    // No values have a lower cost; minus infinity: not known.
    double bound = 0;
    int nodes = 0;
  };
  struct Options {
    double seconds = 10;
  };

  IntegerProgramme();
  ~IntegerProgramme();
  IntegerProgramme(IntegerProgramme&&) noexcept;
  IntegerProgramme& operator=(IntegerProgramme&&) noexcept;

  // Return the variable's number. Its cost is what it adds to the sum that is minimised.
  int AddVariable(double lower, double upper, double cost = 0);
  int AddBinary(double cost = 0);

  // `relation` is '<' (at most), '>' (at least) or '='. Requires: each variable at most once.
  void AddRow(const Terms& terms, char relation, double right);

  // Values that fulfil all rows, to begin with.
  void SetStart(const std::vector<double>& values);

  int variables() const;
  int rows() const;

  // Once. Deterministic if it is not out of time. Requires: there is a binary.
  Answer Minimise(const Options& options);

 private:
  struct Model;
  std::unique_ptr<Model> model_;
};

}  // namespace cadre
