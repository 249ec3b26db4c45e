#include "model/screen.h"

#include "absl/strings/str_cat.h"

namespace cadre {

std::optional<v1::Screen> ScreenOf(const v1::Averaging& averaging) {
  v1::Screen screen = averaging.screen();
  if (screen.has_off()) return std::nullopt;
  if (!screen.has_max_ratio()) screen.set_max_ratio(1000);
  if (screen.has_clip() && !screen.clip().has_ratio()) screen.mutable_clip()->set_ratio(3);
  if (screen.has_exclude()) {
    v1::ScreenExclude& exclude = *screen.mutable_exclude();
    if (!exclude.has_ratio()) exclude.set_ratio(5);
    if (!exclude.has_agreement()) exclude.set_agreement(0.3F);
  }
  if (screen.has_trimmed_mean() && !screen.trimmed_mean().has_share()) {
    screen.mutable_trimmed_mean()->set_share(0.2F);
  }
  return screen;
}

uint32_t TrimOf(const v1::Averaging& averaging, uint32_t groups) {
  const std::optional<v1::Screen> screen = ScreenOf(averaging);
  if (!screen || !screen->has_trimmed_mean()) return 0;
  // 0.2 as a float is above 0.2, so that a fifth of five groups is one.
  return static_cast<uint32_t>(screen->trimmed_mean().share() * static_cast<float>(groups));
}

// The negated comparisons refuse NaN as well.
std::optional<WrongScreen> WrongScreenOf(const v1::Screen& set) {
  v1::Averaging averaging;
  *averaging.mutable_screen() = set;
  const std::optional<v1::Screen> screen = ScreenOf(averaging);
  if (!screen) {
    if (!set.has_max_ratio()) return std::nullopt;
    return WrongScreen{"max_ratio", "is set together with off"};
  }
  const auto everybody = [](float value, const char* bound) {
    return absl::StrCat("is ", value, "; it must be ", bound,
                        ", since contributions of groups that agree would be left out otherwise");
  };
  if (!(screen->max_ratio() > 1)) {
    return WrongScreen{"max_ratio", everybody(screen->max_ratio(), "above 1")};
  }
  if (const float ratio = screen->clip().ratio(); screen->has_clip() && !(ratio >= 1)) {
    return WrongScreen{"clip.ratio", absl::StrCat("is ", ratio, "; it must be at least 1")};
  }
  const v1::ScreenExclude& exclude = screen->exclude();
  if (screen->has_exclude() && !(exclude.ratio() > 1)) {
    return WrongScreen{"exclude.ratio", everybody(exclude.ratio(), "above 1")};
  }
  if (screen->has_exclude() && !(exclude.agreement() >= -1 && exclude.agreement() <= 1)) {
    return WrongScreen{"exclude.agreement", everybody(exclude.agreement(), "in [-1, 1]")};
  }
  const float share = screen->trimmed_mean().share();
  if (screen->has_trimmed_mean() && !(share > 0 && share < 0.5F)) {
    return WrongScreen{"trimmed_mean.share",
                       absl::StrCat("is ", share,
                                    "; it must be above 0 and below 0.5, since "
                                    "nothing would remain otherwise")};
  }
  return std::nullopt;
}

}  // namespace cadre
