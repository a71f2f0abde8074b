"""Text in, all the sound that is shipped out (probe/data): FLAC, 48 kHz, mono, 16 bit, and index.json beside it.

Needs espeak-ng. The same version of it, of soxr and of the table below give the same samples. Run from the root of the
repository:

    python -m scripts.make_utterances [--out DIR]
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import soxr
from numpy.typing import NDArray

from analysis.audibility import LevelTrack
from analysis.audiofile import resample
from analysis.units import dbov, from_dbov
from probe.utterances import RATE_HZ, annotate

__all__ = ["CLIPS", "Clip", "active_dbov", "longest_pause_ms", "make", "synthesise"]

PEAK_DBOV = -3.0
ACTIVE_DBOV = (-21.5, -18.9)  # the peak gives way where speech would leave this
ACTIVE_FROM_DBOV = -45.0  # 20 ms frames at or above this count as active speech
LEAD = RATE_HZ * 5 // 1000  # kept before the first audible sample, faded in
FADE = RATE_HZ * 10 // 1000  # kept after the last audible sample, faded out
TAIL = RATE_HZ * 70 // 1000  # digital silence after that
DATA = Path(__file__).resolve().parent.parent / "probe" / "data"


@dataclass(frozen=True, slots=True)
class Clip:
    """One clip: its name in the index, and what espeak-ng is asked to say (`speed` in words per minute)."""

    name: str
    language: str
    voice: str
    speed: int
    text: str


Line = tuple[int, str]
# language, voice, caller's utterances, agent's replies, filler, greeting; each (speed, text). The speeds are chosen for
# lengths of 1.2 to 2.5 s (caller), 1.0 to 1.8 s (agent), under 350 ms (filler), about 1.2 s (greeting).
TABLE: tuple[tuple[str, str, tuple[Line, ...], tuple[Line, ...], Line, Line], ...] = (
    (
        "en",
        "en-us",
        (
            (180, "What time does the last train leave?"),
            (160, "Can I still change my booking for tomorrow?"),
            (150, "Do you open on Sunday?"),
        ),
        ((190, "It leaves at nine tonight."), (190, "Yes, I can do that now.")),
        (300, "Hmm"),
        (210, "Hello, how can I help?"),
    ),
    (
        "es",
        "es-419",
        (
            (160, "¿A qué hora cierra la oficina?"),
            (180, "¿Cuánto cuesta enviar un paquete mañana?"),
            (160, "¿Dónde está mi pedido?"),
        ),
        ((170, "Cierra hoy a las ocho."), (190, "Sí, lo reviso ahora mismo.")),
        (340, "Mm"),
        (210, "Hola, ¿en qué le ayudo?"),
    ),
    (
        "pt",
        "pt-br",
        (
            (160, "Qual é o horário da farmácia?"),
            (160, "Posso mudar a minha reserva de amanhã?"),
            (200, "Onde fica a loja mais perto?"),
        ),
        ((180, "Abre hoje às nove horas."), (210, "Sim, vou verificar agora.")),
        (290, "Hum"),
        (230, "Olá, como posso ajudar?"),
    ),
    (
        "fr",
        "fr-fr",
        (
            (150, "À quelle heure part le dernier train ?"),
            (140, "Est-ce que je peux changer ma réservation ?"),
            (140, "Où est mon colis maintenant ?"),
        ),
        ((160, "Il part demain à neuf heures."), (150, "Oui je regarde maintenant.")),
        (170, "Hum"),
        (180, "Bonjour, je vous écoute."),
    ),
    (
        "de",
        "de",
        (
            (150, "Wann fährt der nächste Zug?"),
            (150, "Kann ich meine Buchung für morgen noch ändern?"),
            (150, "Haben Sie heute offen?"),
        ),
        ((170, "Er fährt um neun Uhr."), (150, "Ja, das mache ich gern.")),
        (250, "Hm"),
        (210, "Hallo, wie kann ich helfen?"),
    ),
    (
        "hi",
        "hi",
        (
            (160, "आखिरी ट्रेन कब जाती है?"),
            (160, "क्या मैं कल की बुकिंग बदल सकता हूँ?"),
            (160, "मेरा पार्सल कहाँ है?"),
        ),
        ((190, "वह नौ बजे जाती है।"), (170, "हाँ, मैं अभी देखती हूँ।")),
        (320, "हम्म"),
        (170, "नमस्ते, बताइए।"),
    ),
    (
        "zh",
        "cmn",
        (
            (230, "银行几点关门?"),
            (240, "寄包裹要多少钱?"),
            (240, "包裹在哪里?"),
        ),
        ((240, "九点关门。"), (240, "好的我马上看。")),
        (290, "嗯"),
        (240, "您好,请讲。"),
    ),
    (
        "vi",
        "vi",
        (
            (150, "Mấy giờ ngân hàng đóng cửa?"),
            (150, "Tôi có thể đổi lịch hẹn ngày mai không?"),
            (160, "Đơn hàng của tôi ở đâu?"),
        ),
        ((210, "Ngân hàng đóng lúc chín giờ."), (150, "Vâng, tôi xem ngay.")),
        (240, "Ừm"),
        (230, "Xin chào, tôi giúp gì ạ?"),
    ),
    (
        "it",
        "it",
        (
            (160, "A che ora parte l'ultimo treno?"),
            (180, "Posso cambiare la mia prenotazione di domani?"),
            (180, "Dov'è adesso il mio pacco?"),
        ),
        ((170, "Parte domani alle nove."), (170, "Sì, lo faccio subito.")),
        (280, "Ehm"),
        (170, "Salve, mi dica."),
    ),
    (
        "ar",
        "ar",
        (
            (160, "متى يغادر القطار؟"),
            (180, "هل يمكنني تغيير حجزي ليوم غد؟"),
            (160, "أين طلبي الآن؟"),
        ),
        ((210, "في التاسعة مساء."), (180, "سأفعل ذلك الآن.")),
        (300, "هم"),
        (240, "مرحبا، تفضل."),
    ),
)


def _clips() -> tuple[Clip, ...]:
    clips = []
    for language, voice, callers, replies, filler, greeting in TABLE:
        agent = f"{voice}+f3"
        clips += [Clip(f"utterances/{language}/{i}", language, voice, *line) for i, line in enumerate(callers, 1)]
        clips += [Clip(f"replies/{language}/{i}", language, agent, *line) for i, line in enumerate(replies, 1)]
        clips += [Clip(f"fillers/{language}", language, agent, *filler)]
        clips += [Clip(f"greetings/{language}", language, agent, *greeting)]
    return tuple(clips)


CLIPS = _clips()


def synthesise(clip: Clip) -> NDArray[np.int16]:
    """What espeak-ng says, at 48 kHz, levelled and trimmed; int16, mono."""
    command = ["espeak-ng", "-v", clip.voice, "-s", str(clip.speed), "--stdin", "--stdout"]
    data = subprocess.run(command, input=clip.text.encode(), capture_output=True, check=True).stdout
    spoken, rate_hz = soundfile.read(io.BytesIO(data))
    # espeak-ng begins at once: silence around it makes room for what is kept on either side
    x = np.pad(resample(spoken, rate_hz, RATE_HZ).astype(np.float64), (2 * LEAD, TAIL))
    x *= _gain(x)
    found = annotate(x)
    if found is None:
        raise SystemExit(f"{clip.name}: espeak-ng said nothing audible")
    before = x[max(0, found.start_sample - LEAD) : found.start_sample].copy()
    before *= np.linspace(0.0, 1.0, len(before), endpoint=False)
    after = x[found.end_sample + 1 : found.end_sample + 1 + FADE].copy()
    after *= np.linspace(1.0, 0.0, len(after), endpoint=False)
    audible = x[found.start_sample : found.end_sample + 1]
    whole = np.concatenate([before, audible, after, np.zeros(TAIL)])
    return np.clip(np.round(whole * 32768), -32768, 32767).astype(np.int16)


def _gain(x: NDArray[np.float64]) -> float:
    """Peak at −3 dBov, unless active speech would then leave its range."""
    x_at_peak = x * (from_dbov(PEAK_DBOV) / np.abs(x).max())
    level = active_dbov(x_at_peak)
    wanted = min(max(level, ACTIVE_DBOV[0]), ACTIVE_DBOV[1])
    return float(from_dbov(PEAK_DBOV + wanted - level) / np.abs(x).max())


def active_dbov(x: NDArray[np.floating]) -> float:
    """RMS (dBov) of the 20 ms frames (one every 1 ms) at or above −45 dBov."""
    energy = np.concatenate(([0.0], np.cumsum(np.square(x, dtype=np.float64))))
    at = np.arange(0, len(x) - RATE_HZ // 50 + 1, RATE_HZ // 1000)
    power = (energy[at + RATE_HZ // 50] - energy[at]) / (RATE_HZ // 50)
    return dbov(float(power[power >= from_dbov(ACTIVE_FROM_DBOV) ** 2].mean()) ** 0.5)


def longest_pause_ms(audible: NDArray[np.floating]) -> int:
    """The longest run of 5 ms windows (every 1 ms) below −60 dBov, as the milliseconds from its start to its end."""
    track = LevelTrack(audible, RATE_HZ)
    quiet = track.mean_square[: max(0, len(audible) * 1000 // RATE_HZ - 4)] < from_dbov(-60.0) ** 2
    edges = np.flatnonzero(np.diff(np.concatenate(([0], quiet.astype(np.int8), [0]))))
    runs = edges[1::2] - edges[::2]
    return int(runs.max()) + 4 if len(runs) else 0


def make(clip: Clip, out: Path) -> dict[str, Any]:
    """Write one clip below `out`; returns its entry of the index."""
    pcm = synthesise(clip)
    path = out / f"{clip.name}.flac"
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, pcm, RATE_HZ, format="FLAC", subtype="PCM_16")
    samples = pcm.astype(np.float32) / np.float32(32768)
    found = annotate(samples)
    if found is None:
        raise SystemExit(f"{clip.name}: nothing audible is left of it")
    return {
        "language": clip.language,
        "text": clip.text,
        "voice": clip.voice,
        "speed_wpm": clip.speed,
        "samples": len(pcm),
        "start_sample": found.start_sample,
        "end_sample": found.end_sample,
        "start_threshold_dbov": found.start_threshold_dbov,
        "end_threshold_dbov": found.end_threshold_dbov,
        "end_shift_ms": dict(found.end_shift_ms),
        "sha256": hashlib.sha256(pcm.astype("<i2").tobytes()).hexdigest(),
    }


def version() -> str:
    """The version of espeak-ng. Exits with one line if it is not installed."""
    try:
        text = subprocess.run(["espeak-ng", "--version"], capture_output=True, check=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError):
        raise SystemExit("espeak-ng is not installed; install the package espeak-ng (Debian, Homebrew)") from None
    return text.split("text-to-speech:")[-1].split()[0]


def main(arguments: list[str] | None = None) -> None:
    """Write all clips and the index."""
    parser = argparse.ArgumentParser(description="Make the sound that is shipped in probe/data with espeak-ng.")
    parser.add_argument("--out", type=Path, default=DATA, help="folder to write to (default: probe/data)")
    out: Path = parser.parse_args(arguments).out
    espeak = version()
    clips = {clip.name: make(clip, out) for clip in CLIPS}
    index = {
        "schema": "latency-probe/utterances/1",
        "made_by": "scripts/make_utterances.py",
        "espeak_ng": espeak,
        "soxr": soxr.__version__,
        "rate_hz": RATE_HZ,
        "clips": dict(sorted(clips.items())),
    }
    (out / "index.json").write_text(json.dumps(index, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    total = sum(path.stat().st_size for path in out.rglob("*.flac"))
    print(f"{len(clips)} clips, {total / 1e6:.1f} MB, espeak-ng {espeak}", file=sys.stderr)


if __name__ == "__main__":
    main()
