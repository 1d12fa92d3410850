"""Step recordings: written beside the engine, read anywhere."""

from schedtop.engine.recording.arrivals import looks_like_recording, read_arrivals
from schedtop.engine.recording.frames import Marks, RecordingError
from schedtop.engine.recording.reader import Mark, Recording
from schedtop.engine.recording.writer import RecordingMovedError, RecordingWriter, check_new

__all__ = [
    "Mark",
    "Marks",
    "Recording",
    "RecordingError",
    "RecordingMovedError",
    "RecordingWriter",
    "check_new",
    "looks_like_recording",
    "read_arrivals",
]
