#include "model/coding.h"

#include <algorithm>

namespace cadre {
namespace {

constexpr uint32_t kKeep = 64;
// What a sparse code leaves out waits for several rounds and is out of date by then.
constexpr float kSparseFeedback = 0.95F;

}  // namespace

// The coordinator, the aggregators and the ranks each fill in what a spec leaves out, and
// aggregators refuse an order with another coding. So these defaults must not change: members of
// two builds would differ. A build with others has to write the values into the specs that it
// sends.
std::optional<v1::Coding> CodingOf(const v1::Coding& coding) {
  if (coding.codec() == v1::CODEC_UNSPECIFIED || coding.codec() == v1::CODEC_FP32) {
    return std::nullopt;
  }
  v1::Coding filled = coding;
  const bool sparse = coding.codec() == v1::CODEC_TOPK;
  if (sparse && filled.keep() == 0) filled.set_keep(kKeep);
  if (!filled.has_error_feedback()) filled.set_error_feedback(sparse ? kSparseFeedback : 1);
  return filled;
}

bool KeepsChanges(const v1::Averaging& averaging) {
  return averaging.has_staleness() || CodingOf(averaging.up()).has_value();
}

uint32_t FragmentsOf(const v1::Averaging& averaging) {
  return std::max(1U, averaging.fragments().count());
}

bool ExchangesUnits(const v1::Averaging& averaging) {
  return CodingOf(averaging.up()) || CodingOf(averaging.down()) || FragmentsOf(averaging) > 1;
}

bool CodesOnDevice(const v1::Averaging& averaging) {
  return CodingOf(averaging.up()) && averaging.overlap().steps() == 0 &&
         FragmentsOf(averaging) == 1;
}

uint32_t StepsOfRound(const v1::Averaging& averaging) {
  return averaging.every_steps() / FragmentsOf(averaging);
}

}  // namespace cadre
