// One size is measured in three phases, each of which all ranks run together:
//
//   verify   For one algorithm after the other: prepare the buffers, sum data whose sums are exact
//            (exact_data.h), count wrong elements. A barrier separates preparation from the first
//            message, because a rank must not send to buffers that its peer has not registered.
//   measure  The loop of bench/harness.h. A rank returns the maximum time over all ranks, so that
//            all choose the same number of iterations and stop after the same pass over the
//            variants.
//   finish   Release the buffers when no rank uses them any more.
#include "bench/allreduce/rank.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "bench/allreduce/exact_data.h"
#include "bench/allreduce/fabric.h"

namespace cadre::bench {
namespace {

class Rank {
 public:
  Rank(const Settings& settings, const Comparison& comparison, const std::string& gloo_folder,
       const BoardRank& self)
      : settings_(settings),
        comparison_(comparison),
        gloo_folder_(gloo_folder),
        self_(self),
        profile_(settings.profile),
        data_(settings.sizes.back()),
        input_(settings.in_place.back() ? 0 : data_.size()) {}

  absl::Status Run() {
    CADRE_RETURN_IF_ERROR(Connect());
    bool correct = true;
    for (const int64_t bytes : settings_.sizes) {
      for (const bool in_place : settings_.in_place) {
        CADRE_ASSIGN_OR_RETURN(const std::vector<Measurement> measured, Measure(bytes, in_place));
        if (self_.rank() != 0) continue;
        for (const Row& row : comparison_.rows) {
          const nlohmann::ordered_json line = Line(comparison_, row, measured, self_.ranks(),
                                                   settings_.comparison.dtype, bytes, in_place);
          correct = correct && line.at("errors") == 0;
          PrintLine(line);
        }
      }
    }
    return correct ? absl::OkStatus() : absl::DataLossError("some sums are wrong");
  }

 private:
  absl::Status Connect() {
    for (const Variant& variant : comparison_.variants) {
      Fabric& fabric = fabrics_[variant.fabric];
      if (fabric == nullptr) {
        CADRE_ASSIGN_OR_RETURN(fabric, MakeFabric(variant.fabric));
      }
      CADRE_ASSIGN_OR_RETURN(algorithms_.emplace_back(), fabric(variant.algorithm));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<Fabric> MakeFabric(const std::string& name) {
    if (name == "gloo") return ConnectGloo(self_, gloo_folder_);
    if (name == "socket") return ConnectSocket(self_);
    return ConnectCadre(self_, /*tcp=*/name == "tcp", settings_.connections);
  }

  // One measurement for each variant, in order.
  absl::StatusOr<std::vector<Measurement>> Measure(int64_t bytes, bool in_place) {
    task_ = {.dtype = settings_.comparison.dtype, .data = std::span(data_).first(bytes)};
    if (!in_place) task_.input = std::span(input_).first(bytes);
    std::vector<Measurement> measured;
    std::vector<TimedRun> runs;
    for (int64_t i = 0; i < std::ssize(algorithms_); ++i) {
      CADRE_ASSIGN_OR_RETURN(measured.emplace_back(), Verify(i));
      runs.push_back([this, i](int iterations) { return Time(i, iterations); });
    }
    profile_ = false;
    CADRE_ASSIGN_OR_RETURN(const std::vector<Timing> timings,
                           MeasureInterleaved(runs, settings_.effort));
    CADRE_RETURN_IF_ERROR(self_.Barrier());
    for (int64_t i = 0; i < std::ssize(algorithms_); ++i) {
      measured[i].timing = timings[i];
      algorithms_[i]->Finish();
    }
    return measured;
  }

  // Runs the variant once on exact data. The result has no timing yet. Equal on all ranks.
  absl::StatusOr<Measurement> Verify(int64_t variant) {
    AllReduce& algorithm = *algorithms_[variant];
    const absl::StatusOr<int64_t> wrong = CountWrong(algorithm);
    if (!wrong.ok()) return Named(wrong.status(), variant);
    if (profile_ && self_.rank() == 0 && !algorithm.explanation().empty()) {
      std::fprintf(stderr, "%s: %s\n", comparison_.variants[variant].fabric.c_str(),
                   algorithm.explanation().c_str());
    }
    Measurement measured{.algorithm = algorithm.name()};
    CADRE_ASSIGN_OR_RETURN(const double errors, self_.Sum(static_cast<double>(*wrong)));
    measured.errors = static_cast<int64_t>(errors);
    return measured;
  }

  absl::StatusOr<int64_t> CountWrong(AllReduce& algorithm) {
    CADRE_RETURN_IF_ERROR(algorithm.Prepare(task_));
    const std::span<std::byte> addend =
        task_.in_place() ? task_.data : std::span(input_).first(task_.data.size());
    std::fill(task_.data.begin(), task_.data.end(), std::byte{0xff});
    FillExact(task_.dtype, self_.rank(), self_.ranks(), addend);
    // A rank must not send to buffers that its peer has not prepared.
    CADRE_RETURN_IF_ERROR(self_.Barrier());
    CADRE_RETURN_IF_ERROR(algorithm.Run());
    const int64_t wrong =
        algorithm.computes_sum() ? CountErrors(task_.dtype, self_.ranks(), task_.data) : 0;
    // Zeros remain zeros however often they are summed while the clock runs.
    std::fill(task_.data.begin(), task_.data.end(), std::byte{0});
    std::fill(addend.begin(), addend.end(), std::byte{0});
    return wrong;
  }

  // Seconds of the slowest rank.
  absl::StatusOr<double> Time(int64_t variant, int iterations) {
    const absl::StatusOr<double> own = TimeOwn(*algorithms_[variant], iterations);
    return own.ok() ? self_.Max(*own) : Named(own.status(), variant);
  }

  absl::StatusOr<double> TimeOwn(AllReduce& algorithm, int iterations) {
    CADRE_RETURN_IF_ERROR(self_.Barrier());
    // One run before the clock starts refills the caches after another variant.
    if (iterations > 1) {
      CADRE_RETURN_IF_ERROR(algorithm.Run());
      CADRE_RETURN_IF_ERROR(self_.Barrier());
    }
    absl::Status status;
    const double seconds = SecondsOf([&] {
      for (int i = 0; i < iterations && status.ok(); ++i) status = algorithm.Run();
    });
    CADRE_RETURN_IF_ERROR(status);
    return seconds;
  }

  absl::Status Named(const absl::Status& status, int64_t variant) const {
    const Variant& name = comparison_.variants[variant];
    return Annotate(status, absl::StrCat(name.fabric, " ", name.algorithm));
  }

  const Settings& settings_;
  const Comparison& comparison_;
  const std::string& gloo_folder_;
  BoardRank self_;
  bool profile_;
  std::map<std::string, Fabric> fabrics_;
  // By variant.
  std::vector<std::unique_ptr<AllReduce>> algorithms_;
  std::vector<std::byte> data_;
  std::vector<std::byte> input_;
  Task task_;
};

}  // namespace

absl::Status RunRank(const Settings& settings, const Comparison& comparison,
                     const std::string& gloo_folder, const BoardRank& self) {
  return Rank(settings, comparison, gloo_folder, self).Run();
}

}  // namespace cadre::bench
