// The words with which ranks connect, as whoever finds the port may say them: what is understood is
// written back byte for byte, and a greeting is never waited for without end.
#include <glog/logging.h>

#include "tests/fuzz/target.h"
#include "worker/transport/handshake.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view bytes(reinterpret_cast<const char*>(data), size);
  const auto greeting = cadre::DecodeGreeting(bytes);
  if (greeting.ok() && greeting->has_value()) CHECK(Encode(**greeting) == bytes);
  if (greeting.ok() && !greeting->has_value()) CHECK_LT(size, cadre::kMaxText * 3);
  const auto answer = cadre::DecodeAnswer(bytes);
  if (answer.ok()) CHECK(Encode(*answer) == bytes);
  const auto offer = cadre::DecodeOffer(bytes);
  if (offer.ok()) CHECK(Encode(*offer) == bytes);
  const auto settled = cadre::DecodeSettled(bytes);
  if (settled.ok()) CHECK(Encode(*settled) == bytes);
  return 0;
}
