#include "bench/allreduce/referee.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/median.h"
#include "base/status.h"

namespace cadre::bench {
namespace {

using Json = nlohmann::json;

// A round lasts about that long: far beyond what reading the clock and starting together cost, far
// below what a neighbour's disturbance lasts.
constexpr double kRoundSeconds = 5e-3;
constexpr int kMaxIterations = 1000;

// One entrant in the course of a size.
class Course {
 public:
  Course(const Entrant& entrant, const Effort& effort) : entrant_(entrant), effort_(effort) {}

  absl::Status Begin(int64_t bytes, bool in_place) {
    CADRE_ASSIGN_OR_RETURN(const std::vector<Json> prepared,
                           Order({{"do", "prepare"}, {"bytes", bytes}, {"in_place", in_place}}));
    measured_.algorithm = prepared.front().at("algorithm");
    measured_.explanation = prepared.front().at("explanation");
    CADRE_ASSIGN_OR_RETURN(const std::vector<Json> checked, Order({{"do", "check"}}));
    for (const Json& answer : checked) measured_.errors += answer.at("errors").get<int64_t>();
    // The first run pays for fresh memory, so it only bounds what a run takes.
    double run = Slowest(checked);
    if (run < effort_.seconds / 4) {
      CADRE_ASSIGN_OR_RETURN(run, Time(run < kRoundSeconds ? 3 : 1));
    }
    measured_.iterations = static_cast<int>(
        std::clamp(std::ceil(kRoundSeconds / std::max(run, 1e-9)), 1.0, 1.0 * kMaxIterations));
    return absl::OkStatus();
  }

  absl::Status Round(int round) {
    if (round >= effort_.rounds || (!seconds_.empty() && spent_ >= effort_.seconds)) {
      return absl::OkStatus();
    }
    CADRE_ASSIGN_OR_RETURN(const double run, Time(measured_.iterations));
    spent_ += run * measured_.iterations;
    seconds_.push_back(run);
    return absl::OkStatus();
  }

  absl::StatusOr<Measurement> End() {
    CADRE_RETURN_IF_ERROR(Order({{"do", "finish"}}).status());
    measured_.rounds = static_cast<int>(seconds_.size());
    measured_.min_seconds = *std::min_element(seconds_.begin(), seconds_.end());
    measured_.seconds = Median(std::move(seconds_));
    return std::move(measured_);
  }

 private:
  absl::StatusOr<std::vector<Json>> Order(Json order) {
    order["contestant"] = entrant_.number;
    absl::StatusOr<std::vector<Json>> answers = entrant_.crew->Order(order);
    if (answers.ok()) return answers;
    return Annotate(answers.status(),
                    absl::StrCat(entrant_.name.network, " ", entrant_.name.algorithm));
  }

  static double Slowest(const std::vector<Json>& answers) {
    double slowest = 0;
    for (const Json& answer : answers) {
      slowest = std::max(slowest, answer.at("seconds").get<double>());
    }
    return slowest;
  }

  // Of one run.
  absl::StatusOr<double> Time(int iterations) {
    CADRE_ASSIGN_OR_RETURN(const std::vector<Json> answers,
                           Order({{"do", "time"}, {"iterations", iterations}}));
    return Slowest(answers) / iterations;
  }

  const Entrant& entrant_;
  const Effort& effort_;
  Measurement measured_;
  std::vector<double> seconds_;
  double spent_ = 0;
};

}  // namespace

absl::StatusOr<std::vector<Measurement>> Measure(const std::vector<Entrant>& entrants,
                                                 int64_t bytes, bool in_place,
                                                 const Effort& effort) {
  std::vector<Course> courses;
  for (const Entrant& entrant : entrants) courses.emplace_back(entrant, effort);
  for (Course& course : courses) CADRE_RETURN_IF_ERROR(course.Begin(bytes, in_place));
  for (int round = 0; round < effort.rounds; ++round) {
    // Another goes first in every round, so that nobody always follows the same one.
    for (size_t turn = 0; turn < courses.size(); ++turn) {
      const size_t next = (turn + static_cast<size_t>(round)) % courses.size();
      CADRE_RETURN_IF_ERROR(courses[next].Round(round));
    }
  }
  std::vector<Measurement> measurements;
  for (Course& course : courses) {
    CADRE_ASSIGN_OR_RETURN(Measurement measured, course.End());
    measurements.push_back(std::move(measured));
  }
  return measurements;
}

}  // namespace cadre::bench
