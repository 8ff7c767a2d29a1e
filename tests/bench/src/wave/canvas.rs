//! A picture of indexed colours, and its encoding as PNG, still or animated.

use std::convert::Infallible;

use anyhow::Result;
use embedded_graphics::mono_font::{MonoFont, MonoTextStyle, ascii};
use embedded_graphics::pixelcolor::raw::RawU8;
use embedded_graphics::prelude::*;
use embedded_graphics::primitives::Rectangle;
use embedded_graphics::text::{Baseline, Text};

/// The font of labels.
const FONT: MonoFont<'_> = ascii::FONT_9X18;
/// The height of a line of text, in pixels.
pub(crate) const LINE: u32 = FONT.character_size.height;

/// The meaning of a pixel's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ink(u8);

impl Ink {
    pub(crate) const BACKGROUND: Ink = Ink(0);
    pub(crate) const TEXT: Ink = Ink(1);
    pub(crate) const DIM: Ink = Ink(2);
    pub(crate) const GOOD: Ink = Ink(3);
    pub(crate) const BAD: Ink = Ink(4);
    pub(crate) const NOTHING: Ink = Ink(5);

    /// Water of this height, where −1 is the deepest and 1 the highest.
    pub(crate) fn water(height: f32) -> Ink {
        WATER.at((height + 1.0) / 2.0)
    }

    /// An error, where 0 is none and 1 the largest.
    pub(crate) fn error(size: f32) -> Ink {
        ERROR.at(size)
    }
}

/// The colours with a fixed meaning.
const PLAIN: [[u8; 3]; 6] =
    [[10, 14, 20], [231, 237, 243], [125, 140, 156], [94, 214, 150], [255, 122, 89], [58, 62, 70]];

/// Colours between stops, as many as `count`, from `first` on in the palette.
struct ColourRamp {
    first: u8,
    count: u8,
    stops: &'static [[u8; 3]],
}

/// From deep water over water at rest to foam.
const WATER: ColourRamp = ColourRamp {
    first: PLAIN.len() as u8,
    count: 97,
    stops: &[
        [3, 10, 34],
        [8, 40, 82],
        [14, 86, 130],
        [36, 134, 168],
        [112, 190, 200],
        [200, 232, 226],
        [255, 255, 250],
    ],
};

/// From nothing to glowing.
const ERROR: ColourRamp = ColourRamp {
    first: WATER.first + WATER.count,
    count: 48,
    stops: &[[4, 6, 10], [70, 16, 60], [170, 40, 62], [242, 120, 40], [255, 226, 130]],
};

impl ColourRamp {
    fn at(&self, share: f32) -> Ink {
        let nth = (share.clamp(0.0, 1.0) * f32::from(self.count - 1)).round();
        Ink(self.first + nth as u8)
    }

    fn colour(&self, nth: u8) -> [u8; 3] {
        let place = f32::from(nth) / f32::from(self.count - 1) * (self.stops.len() - 1) as f32;
        let below = (place as usize).min(self.stops.len() - 2);
        let share = place - below as f32;
        let mix = |part: usize| {
            let (from, to) = (self.stops[below][part], self.stops[below + 1][part]);
            (f32::from(from) + share * (f32::from(to) - f32::from(from))).round() as u8
        };
        [mix(0), mix(1), mix(2)]
    }
}

fn palette() -> Vec<u8> {
    let ramp = |ramp: &'static ColourRamp| (0..ramp.count).map(|nth| ramp.colour(nth));
    PLAIN.into_iter().chain(ramp(&WATER)).chain(ramp(&ERROR)).flatten().collect()
}

pub(crate) struct Canvas {
    size: Size,
    pixels: Vec<u8>,
}

impl PixelColor for Ink {
    type Raw = RawU8;
}

impl OriginDimensions for Canvas {
    fn size(&self) -> Size {
        self.size
    }
}

impl DrawTarget for Canvas {
    type Color = Ink;
    type Error = Infallible;

    /// Pixels outside of the canvas are not drawn.
    fn draw_iter<Pixels: IntoIterator<Item = Pixel<Ink>>>(
        &mut self,
        pixels: Pixels,
    ) -> Result<(), Infallible> {
        let (inside, width) = (self.bounding_box(), self.size.width as usize);
        for Pixel(at, ink) in pixels.into_iter().filter(|Pixel(at, _)| inside.contains(*at)) {
            self.pixels[at.y as usize * width + at.x as usize] = ink.0;
        }
        Ok(())
    }
}

impl Canvas {
    pub(crate) fn new(size: Size) -> Canvas {
        Canvas { size, pixels: vec![Ink::BACKGROUND.0; (size.width * size.height) as usize] }
    }

    /// Writes a line of text; returns its width.
    pub(crate) fn write(&mut self, at: Point, text: &str, ink: Ink) -> Point {
        let style = MonoTextStyle::new(&FONT, ink);
        let Ok(end) = Text::with_baseline(text, at, style, Baseline::Top).draw(self);
        end
    }

    /// Cells of a square, row by row, each `scale` pixels wide.
    pub(crate) fn cells(&mut self, at: Point, scale: u32, inks: &[Ink]) {
        let side = inks.len().isqrt();
        for (nth, ink) in inks.iter().enumerate() {
            let (column, row) = ((nth % side) as u32, (nth / side) as u32);
            let corner = at + Size::new(column * scale, row * scale);
            let Ok(()) = self.fill_solid(&Rectangle::new(corner, Size::new_equal(scale)), *ink);
        }
    }

    pub(crate) fn png(&self) -> Result<Vec<u8>> {
        animated(std::slice::from_ref(self), 0)
    }
}

/// Pictures of one size as an animated PNG, each shown for `frame_ms`; one picture is a still.
///
/// # Panics
/// There is no picture.
pub(crate) fn animated(canvases: &[Canvas], frame_ms: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let Size { width, height } = canvases[0].size;
    let mut encoder = png::Encoder::new(&mut bytes, width, height);
    encoder.set_color(png::ColorType::Indexed);
    encoder.set_depth(png::BitDepth::Eight);
    encoder.set_palette(palette());
    encoder.set_compression(png::Compression::High);
    // A cell is some rows high: the difference to the row above is mostly none.
    encoder.set_filter(png::Filter::Up);
    if canvases.len() > 1 {
        encoder.set_animated(u32::try_from(canvases.len())?, 0)?;
        encoder.set_frame_delay(u16::try_from(frame_ms)?, 1000)?;
    }
    let mut writer = encoder.write_header()?;
    for canvas in canvases {
        writer.write_image_data(&canvas.pixels)?;
    }
    writer.finish()?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_is_read_back_as_it_was_drawn() {
        let mut canvas = Canvas::new(Size::new(8, 4));
        let outside = Rectangle::new(Point::new(6, 2), Size::new(10, 10));
        let Ok(()) = canvas.fill_solid(&outside, Ink::BAD);
        let inks = [Ink::water(-1.0), Ink::water(1.0), Ink::TEXT, Ink::error(2.0)];
        canvas.cells(Point::zero(), 2, &inks);
        assert_eq!(canvas.pixels[..4], [inks[0].0, inks[0].0, inks[1].0, inks[1].0]);
        assert_eq!(canvas.pixels[8 * 2 + 6], Ink::BAD.0);
        for frames in [1, 3] {
            let canvases: Vec<Canvas> = (0..frames)
                .map(|_| Canvas { pixels: canvas.pixels.clone(), ..Canvas::new(canvas.size) })
                .collect();
            let bytes = animated(&canvases, 100).unwrap();
            let mut reader = png::Decoder::new(std::io::Cursor::new(&bytes)).read_info().unwrap();
            let mut pixels = vec![0; 32];
            reader.next_frame(&mut pixels).unwrap();
            assert_eq!(pixels, canvas.pixels);
            let animation = reader.info().animation_control;
            assert_eq!(animation.map_or(1, |animation| animation.num_frames), frames);
        }
        assert!(palette().len() <= 3 * 256);
        assert_ne!(Ink::water(1.0), Ink::error(0.0));
    }

    #[test]
    fn a_text_stays_within_its_line_and_ends_where_it_says() {
        let mut canvas = Canvas::new(Size::new(100, 2 * LINE));
        let end = canvas.write(Point::zero(), "il|", Ink::TEXT);
        let rows = |row: u32| &canvas.pixels[row as usize * 100..(row as usize + 1) * 100];
        assert!((0..LINE).any(|row| rows(row).contains(&Ink::TEXT.0)));
        assert!((0..LINE).all(|row| rows(row)[end.x as usize..].iter().all(|ink| *ink == 0)));
        assert!((LINE..2 * LINE).all(|row| rows(row).iter().all(|ink| *ink == 0)));
    }
}
